"""The table of kinds of input."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.fuzz import folders, images, runs, shards, tables, weights, words

#: (random numbers, folder of valid files, empty working folder) → the words of a command
Generator = Callable[[Random, Path, Path], list[str]]

KINDS: dict[str, Generator] = {
    "images": images.make,
    "weights": weights.make,
    "runs": runs.make,
    "shards": shards.make,
    "tables": tables.make,
    "folders": folders.make,
    "words": words.make,
}


def make_case(kind: str, seed: int, index: int, *, seeds: Path, here: Path) -> list[str]:
    """Write the files of a case into the empty folder ``here``, the working folder; returns the command's words."""
    return KINDS[kind](Random(hashlib.sha256(f"{kind} {seed} {index}".encode()).digest()), seeds, here)
