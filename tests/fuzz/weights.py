"""Damaged weights: our files, torch's, NumPy's, and folders with a config.json."""

import json
import shutil
from pathlib import Path
from random import Random

from tests.fuzz.mutate import damaged, damaged_json
from tests.fuzz.seeds import TRAIN

COMMANDS = ["predict W d/a", "embed W d/a --output out.npy", "evaluate W --data d --batch-size 4"]
SELDOM = [
    "explain W d/a/0.png --quick --output out.html",
    "explain ours.safetensors d/a/0.png --quick --compare W --output out.html",
    "export W out.onnx --sizes fixed",
    f"{TRAIN} --weights W",
    "train --data d --weights W --output run --train.steps 1 --train.workers 1 --train.batch-size 2",
]


def make(rng: Random, seeds: Path, here: Path) -> list[str]:
    shutil.copytree(seeds / "d", here / "d")
    shutil.copy(seeds / "weights" / "ours.safetensors", here)
    weights = damage_copy(rng, rng.choice(sorted((seeds / "weights").iterdir())), here)
    command = rng.choice(SELDOM if rng.random() < 0.05 else COMMANDS).replace("W", weights.name)
    foreign = weights.suffix in (".pt", ".npz") and command.startswith(("predict", "embed"))
    return [*command.split(), *(["--model", rng.choice(["vit_tiny_16", "deit_tiny_16"])] if foreign else [])]


def damage_copy(rng: Random, source: Path, here: Path) -> Path:
    """A damaged copy of a weights file or of a folder that holds one."""
    place = here / f"w{source.suffix}"
    if source.is_dir():
        shutil.copytree(source, place)
        file = rng.choice(sorted(place.iterdir()))
        if file.suffix == ".json":
            file.write_bytes(damaged_json(json.loads(file.read_text()), rng))
        else:
            file.write_bytes(damaged_safetensors(file.read_bytes(), rng))
    elif source.suffix == ".safetensors":
        place.write_bytes(damaged_safetensors(source.read_bytes(), rng))
    else:
        place.write_bytes(damaged(source.read_bytes(), rng))
    return place


def damaged_safetensors(content: bytes, rng: Random) -> bytes:
    """Mostly the header is changed, as JSON, and in it the JSON of config, edits and spec."""
    if rng.random() < 0.25:
        return damaged(content, rng)
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    described = header.get("__metadata__", {})
    parts = [name for name in ("config", "edits", "spec") if name in described]
    if parts and rng.random() < 0.7:
        part = rng.choice(parts)
        described[part] = damaged_json(json.loads(described[part]), rng).decode("utf-8", "replace")
        text = json.dumps(header).encode()
    else:
        text = damaged_json(header, rng)
    return len(text).to_bytes(8, "little") + text + body
