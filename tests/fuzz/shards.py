"""Damaged shards: the index, the tar files, both, and tar files of others without an index."""

import io
import json
import shutil
import tarfile
from pathlib import Path
from random import Random

from tests.fuzz.mutate import ODD, damaged, damaged_json
from tests.fuzz.seeds import TRAIN

COMMANDS = [
    "data inspect shards --output out.png",
    "evaluate ours.safetensors --data shards",
    "data pack shards packed --shard-size 3",
]
SELDOM = [f"{TRAIN} --data shards"]


def make(rng: Random, seeds: Path, here: Path) -> list[str]:
    shutil.copy(seeds / "weights" / "ours.safetensors", here)
    shutil.copytree(seeds / "shards", here / "shards")
    index, tar = here / "shards" / "index.json", here / "shards" / "00000.tar"
    what = rng.random()
    if what < 0.5:
        index.write_bytes(damaged_json(json.loads(index.read_text()), rng))
    elif what < 0.65:
        content = damaged(tar.read_bytes(), rng)
        size = tar.stat().st_size
        tar.write_bytes(content[:size].ljust(size, b"\0") if rng.random() < 0.5 else content)
    else:
        index.unlink()
        write_tar(rng, tar)
    return rng.choice(SELDOM if rng.random() < 0.04 else COMMANDS).split()


def write_tar(rng: Random, tar: Path) -> None:
    """Images beside labels in the WebDataset convention, some of the members odd, and the whole perhaps damaged."""
    image = tar.read_bytes()[512:1700]
    with tarfile.open(tar, "w") as file:
        for number in range(rng.randint(1, 6)):
            label = json.dumps(rng.choice(ODD)) if rng.random() < 0.2 else str(number % 2)
            add(file, rng, f"{number:04}.png", image)
            add(file, rng, f"{number:04}.{rng.choice(('cls', 'cls', 'cls', 'json', 'txt', 'CLS'))}", label.encode())
    if rng.random() < 0.4:
        tar.write_bytes(damaged(tar.read_bytes(), rng))


def add(file: tarfile.TarFile, rng: Random, name: str, content: bytes) -> None:
    odd = rng.random() < 0.1
    entry = tarfile.TarInfo(rng.choice(["../" + name, "/" + name, "", "ü" * 120, name + "/", "."]) if odd else name)
    kinds = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"S", b"x")
    entry.type = rng.choice(kinds) if rng.random() < 0.1 else tarfile.REGTYPE
    entry.linkname = "/dev/zero" if entry.type in kinds[1:3] else ""
    entry.size = len(content)
    file.addfile(entry, io.BytesIO(content))
