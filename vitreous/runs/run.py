"""``vt.train``: run a recipe and write its folder (config, log, checkpoints, ``model.safetensors``, result, report)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.data.augment import Augment
from vitreous.files import open_file, write_atomically
from vitreous.options import checked
from vitreous.runs.arguments import AnyModel, Overrides, errors_in_python_terms, plan_run
from vitreous.runs.fingerprint import Fingerprint, compare_fingerprints, fingerprint
from vitreous.runs.prepare import Prepared, prepare_run
from vitreous.runs.recipe import Recipe
from vitreous.runs.record import load_best_model, write_record
from vitreous.runs.trained import TrainResult
from vitreous.tasks.base import Task
from vitreous.train.checkpoint import Checkpoints
from vitreous.train.config import TrainConfig
from vitreous.train.loop import Trainer, TrainOutcome
from vitreous.train.parallel import World, init_process_group
from vitreous.train.probe import fit_head, is_untrained

#: Settings that may change on resume: those without effect on the weights, and remedies for a diverged run.
CHANGEABLE = {f"train.{name}" for name in ("device", "workers", "log_every", "keep", "checkpoint_every", "parallel")}
CHANGEABLE |= {f"train.{name}" for name in ("clip", "optimizer.lr", "optimizer.matrix_lr", "schedule.warmup")}
#: Settings missing from runs of earlier versions, with their behavior.
LEGACY_DEFAULTS = {"train.patience": 0, "train.new_head": "random"}


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
    """Train or fine-tune a model, choosing all settings that are not given; the result lists them with reasons.

    >>> result = vt.train("vit_tiny_16", "photos/")                           # a folder of class folders
    >>> result = vt.train(vt.load("deit_tiny_16.in1k"), dataset, epochs=5)    # fine-tune on (image, target) items
    >>> result = vt.train("cifar10_vit", "runs/mine")                         # a recipe, which includes its data
    >>> result.model, result.metrics["accuracy"], result.folder
    >>> result.predictor()("photo.jpg")

    Args:
        model: A model (a copy is trained, starting from its weights), a config, a model name, pretrained weights (a
            file or a published name), a recipe (an object, a name or a Python file), or None to have a model chosen.
        data: A path or a built-in name as on the command line, a ``Dataset`` or ``Splits``, or any map-style dataset
            with items (image, target), such as torchvision's. Images are Pillow images, arrays or tensors, neither
            normalized nor randomly transformed; targets are class indices or names, vectors with one value per class,
            masks, or dicts with boxes and labels. A pair is training and validation data. None with a recipe: its data.
        output: The run folder; runs/NAME by default.
        valid: Validation data, or the fraction to hold out (default 0.1).
        task: A task or its name; by default chosen by the type of the targets.
        weights: Pretrained weights to start from, for a model given by config or name.
        epochs: Overrides the number of epochs, as do ``batch_size``, ``lr`` (peak) and ``augment`` for theirs.
        config: All training settings at once.
        resume: Resume from the newest intact checkpoint in ``output``, with the same arguments as before. Processes
            restarted by torchrun always resume.

    Returns:
        The best model in evaluation mode, its metrics on the validation data, the run folder, and the chosen settings.

    Raises:
        ValueError: For unsuitable arguments or data, a folder that already holds a run, or training that diverges.
    """
    with errors_in_python_terms():
        settings = Overrides.parse(
            task=task, augment=augment, config=config, epochs=epochs, batch_size=batch_size, lr=lr
        )
        run = plan_run(model, data, output, valid=valid, weights=weights, settings=settings)
        world = init_process_group(run.recipe.train.device)
        prepared = prepare_run(run.recipe, splits=run.splits, start=run.start)
        outcome = run_training(prepared, run.recipe, run.folder, world, resume=checked("resume", resume, bool))
        return TrainResult.of(outcome, load_best_model(run.folder, prepared), run.folder, run.chosen, prepared.notes)


def run_training(
    prepared: Prepared, recipe: Recipe, folder: Path, world: World, *, resume: bool, command: str = ""
) -> TrainOutcome:
    """Train a prepared recipe and write the record of the run; ``command`` is recorded in ``result.json``."""
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    check_same_data(prepared, world)
    opened = world.run_on_main(lambda: open_run_folder(folder, recipe, prepared, resume=resume))
    notes = [*(opened.notes if opened else ()), *fit_new_head(prepared, recipe.train, folder, world)]
    trainer = Trainer(
        prepared.model,
        recipe.task,
        prepared.train,
        valid=prepared.valid,
        augment=recipe.augment,
        config=recipe.train,
        folder=folder,
        world=world,
        metadata_files=opened.metadata_files if opened else None,
    )
    outcome = trainer.fit(resume=resume, notes=notes)
    facts = trainer.objective.facts()

    def finish() -> None:
        try:
            write_record(folder, outcome, prepared, recipe, world=world, command=command, facts=facts)
        except OSError as error:
            raise ValueError(
                f"the trained model is in {trainer.model_path}, but the record of the run could not be written "
                f"({error.strerror or error}); free disk space and continue with --resume"
            ) from None

    world.run_on_main(finish)
    return outcome


def fit_new_head(prepared: Prepared, config: TrainConfig, folder: Path, world: World) -> list[str]:
    """Initialize a new classifier by a linear probe if configured, unless a checkpoint will be restored."""
    head = getattr(prepared.model, "head", None)
    checkpoints = Checkpoints(folder / "checkpoints", keep=config.keep, world=world)
    if config.new_head == "random" or (head is not None and not is_untrained(head)) or checkpoints.newest():
        return []
    return [fit_head(prepared.model, prepared.train, device=world.device, workers=config.workers)]


def check_same_data(prepared: Prepared, world: World) -> None:
    """Raise if the processes found different data, which would deadlock them later."""
    valid = prepared.valid
    own = (len(prepared.train), 0 if valid is None else len(valid), prepared.train.classes)
    every = world.all_gather(own)
    if other := next((rank for rank, found in enumerate(every) if found != every[0]), 0):
        (train, valid, _), (others, other_valid, _) = every[0], every[other]
        raise ValueError(
            f"the processes found different data: process 0 {train:,} training and {valid:,} validation images, "
            f"process {other} {others:,} and {other_valid:,}, or different classes; give all processes the same files"
        )


@dataclass(frozen=True)
class RunFolder:
    """An opened run folder: the metadata files written to it, and notes for the user."""

    metadata_files: dict[Path, bytes]
    notes: list[str]


def open_run_folder(folder: Path, recipe: Recipe, prepared: Prepared, *, resume: bool) -> RunFolder:
    """Create a run folder, or check that an existing run has the same settings and data; write its metadata files."""
    described, data = json.loads(json.dumps(recipe.to_json())), fingerprint(prepared, recipe.data.source)
    notes: list[str] = []
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        if is_run(folder):
            if not resume:
                raise ValueError(
                    f"{folder} already holds a run; add --resume to continue it, or choose another --output"
                )
            data, notes = check_resumable(folder, described, data, prepared)
        if (folder / "log.jsonl").is_dir():
            raise ValueError(f"{folder / 'log.jsonl'} is a folder, expected a file; choose another --output")
        metadata_files = {
            folder / "config.json": json.dumps(described, indent=1).encode(),
            folder / "data.json": data.to_bytes(),
        }
        for path, content in metadata_files.items():
            write_atomically(path, content)
    except OSError as error:
        where = error.filename or folder
        raise ValueError(f"cannot write to {where} ({error.strerror}); choose another --output") from None
    return RunFolder(metadata_files, notes)


def check_resumable(
    folder: Path, described: dict[str, Any], data: Fingerprint, prepared: Prepared
) -> tuple[Fingerprint, list[str]]:
    """Check settings and data against those of the run; return the updated fingerprint and notes for the user."""
    config, known = folder / "config.json", folder / "data.json"
    notes: list[str] = []
    before = read_settings(config) if config.exists() else None
    if before is None:
        notes.append(f"{config} is missing, so the settings cannot be compared with those of the run")
    else:
        check_settings(before, described, folder, free=CHANGEABLE | {"data.source"} if known.exists() else CHANGEABLE)
    if known.exists():
        data, more = check_data(known, data, folder)
        source = before["data"].get("source") if before else described["data"]["source"]
        if source != described["data"]["source"]:
            more.append(f"the same data as before, moved from {source} to {described['data']['source']}")
        return data, notes + more
    if prepared.held_out and len(data.train.rows):
        raise ValueError(
            f"{folder} has no data.json: it was started by an earlier version, which held out other validation images, "
            "so that training images would be validated on; continue with that version, or restart in another --output"
        )
    return data, [*notes, "the run has no data.json, so the data cannot be compared"]


def check_data(path: Path, now: Fingerprint, folder: Path) -> tuple[Fingerprint, list[str]]:
    """Compare the data with the run's ``data.json``; return the updated fingerprint and notes for the user."""
    try:
        with open_file(path) as file:
            before = Fingerprint.from_bytes(file.read())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); restore it, or restart in another --output") from None
    try:
        return compare_fingerprints(before, now)
    except ValueError as error:
        raise ValueError(
            f"{folder} was started with other data: {error}; resume with the original data, or restart in another "
            f"--output (--weights {folder / 'model.safetensors'} starts from the weights so far)"
        ) from None


def read_settings(path: Path) -> dict[str, Any]:
    """Read and validate a run's ``config.json``."""
    try:
        with open_file(path) as file:
            settings = json.loads(file.read())
        if not all(isinstance(settings[part], dict) for part in ("model", "data", "train")):
            raise ValueError("not the settings of a run")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}); restore it, or restart in another --output"
        ) from None
    return dict(settings)


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a model or a checkpoint, unlike after a failed start."""
    return (folder / "model.safetensors").exists() or any((folder / "checkpoints").glob("step-*.json"))


def check_settings(before: dict[str, Any], now: dict[str, Any], folder: Path, *, free: Set[str] = CHANGEABLE) -> None:
    """Raise if settings other than ``free`` differ from those of the run, listing the differences."""
    old, new = LEGACY_DEFAULTS | dict(flatten(before)), dict(flatten(now))
    changed = [
        f"{name} was {old.get(name, 'not set')}, is {value}"
        for name, value in new.items()
        if old.get(name) != value and name not in free
    ]
    if changed:
        more = f"; and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ValueError(
            f"{folder} was started with other settings ({'; '.join(changed[:3])}{more}); resume with the same "
            f"settings, or start another run, from these weights if you like: --weights {folder}/model.safetensors "
            "--output FOLDER"
        )


def flatten(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings with dotted names; ``train.optimizer.optimizer`` is shortened to ``train.optimizer``."""
    for name, value in settings.items():
        path = prefix.removesuffix(".") if prefix.endswith(f".{name}.") else f"{prefix}{name}"
        if isinstance(value, dict):
            yield from flatten(value, f"{path}.")
        else:
            yield path, value
