"""Run folders and the laboratory's records with damaged files in them."""

import json
import shutil
from pathlib import Path
from random import Random

from tests.fuzz.mutate import damaged, damaged_json
from tests.fuzz.seeds import TRAIN

COMMANDS = ["predict run d/a", "embed run d/a --output out.npy", "evaluate run --data d"]
FILES = ["config.json", "config.json", "data.json", "data.json", "log.jsonl", "classes.json", "result.json",
         "model.safetensors", "checkpoints/step-00000002.json", "checkpoints/step-00000002.json",
         "checkpoints/step-00000001.json", "checkpoints/step-00000002.safetensors"]  # fmt: skip


def make(rng: Random, seeds: Path, here: Path) -> list[str]:
    if rng.random() < 0.15:
        return records(rng, seeds, here)
    shutil.copytree(seeds / "d", here / "d")
    shutil.copytree(seeds / "run", here / "run")
    for name in dict.fromkeys(rng.sample(FILES, rng.choice((1, 1, 2)))):
        harm(rng, here / "run" / name)
    resume = f"{TRAIN} --train.evaluate-every 0 --resume"
    return (resume if rng.random() < 0.25 else rng.choice(COMMANDS)).split()


def records(rng: Random, seeds: Path, here: Path) -> list[str]:
    """Results that the laboratory has kept."""
    shutil.copytree(seeds / "lab", here / "lab")
    harm(rng, rng.choice(sorted((here / "lab" / "quick").iterdir())))
    return ["lab", "--folder", "lab"]


def harm(rng: Random, path: Path) -> None:
    """Damage, remove, or replace one file by a folder."""
    if not path.is_file():
        return
    content, what = path.read_bytes(), rng.random()
    path.unlink()
    if what < 0.05:
        path.mkdir()
    elif what < 0.7 and path.suffix == ".json":
        path.write_bytes(damaged_json(json.loads(content), rng))
    elif what < 0.7 and path.suffix == ".jsonl":
        lines = content.splitlines()
        lines[rng.randrange(len(lines))] = damaged_json(json.loads(rng.choice(lines)), rng)
        path.write_bytes(b"\n".join(lines) + b"\n")
    elif what < 0.95:
        path.write_bytes(damaged(content, rng))
