"""Damaged CSV files: cells, columns, quoting, encodings."""

import shutil
from pathlib import Path
from random import Random

from tests.fuzz.mutate import damaged
from tests.fuzz.seeds import TRAIN

COMMANDS = [
    "data inspect TABLE --output out.png",
    "evaluate ours.safetensors --data TABLE",
    "data pack TABLE packed",
]
SELDOM = [f"{TRAIN} --data TABLE"]
CELLS = [
    "", " ", "nan", "-1", "1", "0", "1e999", "9" * 5000, "²", "a;b", ";", '"', '"x', "d/a", "/dev/zero", "~", "~x",
    "../", ".", "\0", "ü", "train", "val", "test", "label", "path", "[/]", "[bold]", "x" * 300, "=1+1", "d/a/0.png",
    "\r", "\u202e",
]  # fmt: skip


def make(rng: Random, seeds: Path, here: Path) -> list[str]:
    shutil.copytree(seeds / "d", here / "d")
    shutil.copy(seeds / "weights" / "ours.safetensors", here)
    source = rng.choice(("table.csv", "table.csv", "many.csv"))
    rows = [line.split(",") for line in (seeds / source).read_text().splitlines()]
    for _ in range(rng.choice((1, 2, 6))):
        change(rng, rows)
    lines = rng.choice(("\n", "\n", "\r\n", "\r")).join(rng.choice((",", ",", ";", "\t")).join(row) for row in rows)
    content = lines.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig")), "surrogatepass")
    (here / source).write_bytes(damaged(content, rng) if rng.random() < 0.25 else content)
    return rng.choice(SELDOM if rng.random() < 0.04 else COMMANDS).replace("TABLE", source).split()


def change(rng: Random, rows: list[list[str]]) -> None:
    row = rng.choice(rows)
    place = rng.randrange(len(row) + 1)
    what = rng.random()
    if what < 0.7 and place < len(row):
        row[place] = rng.choice(CELLS)
    elif what < 0.8:
        row.insert(place, rng.choice(CELLS))
    elif what < 0.9 and len(row) > 1:
        row.pop()
    elif len(rows) > 1:
        rows.remove(row)
