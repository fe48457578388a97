"""Class folders with odd names, links that lead in circles or nowhere, pipes, sockets, and files that are no images."""

import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.fuzz.seeds import TRAIN

COMMANDS = [
    "predict ours.safetensors d --format csv --output out.csv",
    "embed ours.safetensors d --output out.npy --nearest 3",
    "evaluate ours.safetensors --data d",
    "data inspect d --output out.png",
    "data pack d packed",
]
SELDOM = [TRAIN, "explain ours.safetensors d/a --quick --output out.html"]
NAMES = [
    b"train", b"val", b"test", b"index.json", b"0.tar", b".hidden", b" ", b"-x", b"--help", b"[bold]", b"*",
    b"\xff\xfe", b"a\nb", b"a;b", "ünï→".encode(), b"x" * 255, b"n01440764", b"batches.meta", b"meta", b"A", b"0",
    b"1e9", b"cifar-10-batches-py", b"data_batch_1", b"\x1b[31m", b"Thumbs.db", b"{}", b"%s",
]  # fmt: skip


def make(rng: Random, seeds: Path, here: Path) -> list[str]:
    shutil.copytree(seeds / "d", here / "d")
    shutil.copy(seeds / "weights" / "ours.safetensors", here)
    places = [b"d", b"d/a", b"d/b"]
    for _ in range(rng.choice((1, 2, 4, 8))):
        place = os.path.join(rng.choice(places), rng.choice(NAMES))
        with suppress(OSError):
            rng.choice(ODDITIES)(rng, place)
        if os.path.isdir(place) and not os.path.islink(place):
            places.append(place)
    return rng.choice(SELDOM if rng.random() < 0.04 else COMMANDS).split()


def folder_with_images(rng: Random, place: bytes) -> None:
    os.mkdir(place)
    shutil.copy(b"d/" + rng.choice((b"a/0.png", b"b/1.png")), place)


def nested(rng: Random, place: bytes) -> None:
    os.makedirs(os.path.join(place, *[b"x"] * rng.choice((1, 40))))


def renamed(rng: Random, place: bytes) -> None:
    os.rename(rng.choice((b"d/a", b"d/b", b"d/a/0.png")), place)


def link(rng: Random, place: bytes) -> None:
    os.symlink(rng.choice((b".", b"..", b"nowhere", b"/dev/zero", b"/dev/null", place, os.path.abspath(b"d"))), place)


def pipe(rng: Random, place: bytes) -> None:
    os.mkfifo(place)


def plug(rng: Random, place: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.fsdecode(place))


def text(rng: Random, place: bytes) -> None:
    with open(place, "xb") as file:  # opening a pipe that is there already would wait for its reader
        file.write(rng.choice((b"", b"text", b"{}", b"\0" * 2000)))


def loss(rng: Random, place: bytes) -> None:
    """Something that was there is gone."""
    gone = Path(rng.choice(("d/a", "d/b", "d/a/0.png", "d/b/1.png")))
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()


ODDITIES = (folder_with_images, folder_with_images, nested, renamed, link, link, pipe, plug, text, text, loss)
