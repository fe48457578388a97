"""From a recipe to a run folder: config, log, checkpoints, ``model.safetensors``, result, report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vitreous.files import write_atomically
from vitreous.runs.prepare import Prepared, prepare
from vitreous.runs.recipe import Recipe, find_recipe
from vitreous.runs.record import write_record
from vitreous.train.loop import Outcome, Trainer
from vitreous.train.parallel import World, join


def train(recipe: Recipe | str, output: str | os.PathLike[str] = "", *, resume: bool = False) -> Outcome:
    """Run a recipe, given whole, by name or by path. The folder gets everything, runs/NAME when none is given.

    ``resume`` goes on from the newest whole checkpoint there; a process restarted by torchrun does so by itself.
    """
    name = Path(recipe).stem if isinstance(recipe, str) else "latest"
    recipe = find_recipe(recipe) if isinstance(recipe, str) else recipe
    world = join(recipe.train.device)
    return train_on(prepare(recipe), recipe, Path(output or f"runs/{name}"), world, resume=resume)


def train_on(
    prepared: Prepared, recipe: Recipe, folder: Path, world: World, *, resume: bool, command: str = ""
) -> Outcome:
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if world.is_main:
        open_folder(folder, recipe, resume=resume)
    world.wait()
    trainer = Trainer(
        prepared.model,
        recipe.task,
        prepared.train,
        valid=prepared.valid,
        augment=recipe.augment,
        config=recipe.train,
        folder=folder,
        world=world,
    )
    outcome = trainer.fit(resume=resume)
    if world.is_main:
        write_record(folder, outcome, prepared, recipe, world=world, command=command)
    world.wait()
    return outcome


def open_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """A new run needs a folder without a run in it; a resumed one the same settings as before."""
    config, described = folder / "config.json", json.loads(json.dumps(recipe.to_json()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if resume and is_run(folder) and config.exists():
            compare(json.loads(config.read_bytes()), described, folder)
        elif is_run(folder):
            raise ValueError(f"{folder} holds a run already; add --resume to go on with it, or choose another --output")
        write_atomically(config, json.dumps(described, indent=1).encode())
    except OSError as error:
        raise ValueError(f"cannot write to {folder} ({error.strerror}); choose another --output") from None


def is_run(folder: Path) -> bool:
    """Whether something was learned there; a start that failed may be tried again."""
    return (folder / "model.safetensors").exists() or any((folder / "checkpoints").glob("step-*.json"))


def compare(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    free = {"device", "workers", "log_every", "keep", "checkpoint_every", "parallel"}  # change nothing that is learned
    free |= {"lr", "muon_lr", "warmup", "clip"}  # what one changes when a run diverges
    for part, values in now.items():
        old = before.get(part)
        if isinstance(values, dict) and isinstance(old, dict):
            changed = [f"{part}.{name}" for name in values if old.get(name) != values[name] and name not in free]
        else:
            changed = [part] if values != old else []
        if changed:
            raise ValueError(
                f"{folder} was started with other settings ({changed[0]} differs); resume with the same ones, or start "
                "anew in another --output"
            )
