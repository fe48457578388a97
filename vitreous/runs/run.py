"""From a recipe to a run folder: config, log, checkpoints, ``model.safetensors``, result, report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.data.augment import Augment
from vitreous.files import write_atomically
from vitreous.options import checked
from vitreous.runs.arguments import AnyModel, Settings, plan, words_of_python
from vitreous.runs.prepare import Prepared, prepare
from vitreous.runs.recipe import Recipe
from vitreous.runs.record import kept_model, write_record
from vitreous.runs.trained import TrainResult
from vitreous.tasks.base import Task
from vitreous.train.config import TrainConfig
from vitreous.train.loop import Outcome, Trainer
from vitreous.train.parallel import World, join

#: Settings that a resumed run may change: those that change nothing that is learned, and the cures of a diverged run.
FREE = {f"train.{name}" for name in ("device", "workers", "log_every", "keep", "checkpoint_every", "parallel", "clip")}
FREE |= {"train.optimizer.lr", "train.optimizer.matrix_lr", "train.schedule.warmup"}


def train(
    model: AnyModel,
    data: Any = None,
    output: str | os.PathLike[str] = "",
    *,
    valid: Any = None,
    task: Task | str | None = None,
    weights: str | os.PathLike[str] = "",
    epochs: float | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    augment: Augment | None = None,
    config: TrainConfig | None = None,
    resume: bool = False,
) -> TrainResult:
    """Train a model on data; what is not given is chosen for the data, and the result says what and why.

    >>> result = vt.train("vit_tiny_16", "photos/")                           # a folder of class folders
    >>> result = vt.train(vt.load("deit_tiny_16.in1k"), dataset, epochs=5)    # fine-tune on (image, target) items
    >>> result = vt.train("cifar10_vit", "runs/mine")                         # a recipe, which brings its data
    >>> result.model, result.metrics["accuracy"], result.folder
    >>> result.predictor()("photo.jpg")

    ``model`` is a model (a copy of it is trained, from its weights on), a config or a model's name, weights to start
    from, None to have one chosen, or a recipe, given whole, by name or by its file. ``weights`` are others to start
    from.

    ``data`` is a path or a word as on the command line, a ``Dataset`` or ``Splits``, or any dataset with a length whose
    items are (image, target), such as torchvision's. Images are Pillow images, arrays or tensors, not normalized and
    not randomly transformed; targets are class numbers or names, vectors with one value per class, masks, or dicts with
    boxes and labels. ``valid`` is data to validate on, or the share to hold out for it (0.1); ``data`` may also be a
    pair of both.

    ``epochs``, ``batch_size`` and ``lr`` change what was chosen, or ``config``, which holds every setting of training.
    The run is kept in the folder ``output``, runs/NAME when none is given. ``resume`` goes on from the newest whole
    checkpoint there, and needs the same arguments as before; a process restarted by torchrun resumes by itself.
    """
    with words_of_python():
        settings = Settings.given(
            task=task, augment=augment, config=config, epochs=epochs, batch_size=batch_size, lr=lr
        )
        run = plan(model, data, output, valid=valid, weights=weights, settings=settings)
        world = join(run.recipe.train.device)
        prepared = prepare(run.recipe, splits=run.splits, start=run.start)
        outcome = train_on(prepared, run.recipe, run.folder, world, resume=checked("resume", resume, bool))
        return TrainResult.of(outcome, kept_model(run.folder, prepared), run.folder, run.chosen, prepared.notes)


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
