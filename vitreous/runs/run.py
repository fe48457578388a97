"""From a recipe to a run folder: config, log, checkpoints, ``model.safetensors``, result, report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.files import write_atomically
from vitreous.runs.prepare import Prepared, prepare
from vitreous.runs.recipe import Recipe, find_recipe
from vitreous.runs.record import write_record
from vitreous.train.loop import Outcome, Trainer
from vitreous.train.parallel import World, join

#: Settings that a resumed run may change: those that change nothing that is learned, and the cures of a diverged run.
FREE = {f"train.{name}" for name in ("device", "workers", "log_every", "keep", "checkpoint_every", "parallel", "clip")}
FREE |= {"train.optimizer.lr", "train.optimizer.matrix_lr", "train.schedule.warmup"}


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
        write_record(folder, outcome, prepared, recipe, world=world, command=command, facts=trainer.objective.facts())
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
    """Refuse to resume with settings that change what is learned, and tell which."""
    old, new = dict(flat(before)), dict(flat(now))
    changed = [
        f"{name} was {old.get(name, 'not set')}, is {value}"
        for name, value in new.items()
        if old.get(name) != value and name not in FREE
    ]
    if changed:
        more = f"; and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ValueError(
            f"{folder} was started with other settings ({'; '.join(changed[:3])}{more}); resume with the same ones, or "
            "start anew in another --output"
        )


def flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted names; the kind of a mixer or an optimizer goes by the name of the whole."""
    for name, value in settings.items():
        whole = above.removesuffix(".") if above.endswith(f".{name}.") else f"{above}{name}"
        if isinstance(value, dict):
            yield from flat(value, f"{whole}.")
        else:
            yield whole, value
