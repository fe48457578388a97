"""Damaged images of every format, alone and among whole ones."""

import shutil
from pathlib import Path
from random import Random

from tests.fuzz.mutate import damaged
from tests.fuzz.seeds import TRAIN

COMMANDS = [
    "predict ours.safetensors d/a",
    "predict ours.safetensors d --format jsonl --output out.jsonl",
    "predict ours.safetensors d/a --draw drawn",
    "embed ours.safetensors d --output out.npy --nearest 2",
    "evaluate ours.safetensors --data d",
    "data inspect d --output out.png",
    "data pack d packed",
]
SELDOM = ["explain ours.safetensors IMAGE --quick --output out.html", TRAIN]


def make(rng: Random, seeds: Path, here: Path) -> list[str]:
    shutil.copytree(seeds / "d", here / "d")
    shutil.copy(seeds / "weights" / "ours.safetensors", here)
    sources = sorted((seeds / "images").iterdir())
    for number in range(rng.choice((1, 1, 3))):
        source = rng.choice(sources)
        suffix = source.suffix if rng.random() < 0.8 else rng.choice((".jpg", ".txt", "", ".JPEG"))
        image = here / "d" / rng.choice("ab") / f"{rng.choice('09z')}{number}{suffix}"
        image.write_bytes(damaged(source.read_bytes(), rng))
    command = rng.choice(SELDOM if rng.random() < 0.05 else COMMANDS)
    return command.replace("IMAGE", str(image.relative_to(here))).split()
