"""From a recipe to a run folder: config, log, checkpoints, ``model.safetensors``, result, report."""

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
from vitreous.runs.arguments import AnyModel, Settings, plan, words_of_python
from vitreous.runs.fingerprint import Fingerprint, fingerprint
from vitreous.runs.fingerprint import compare as compare_data
from vitreous.runs.prepare import Prepared, prepare
from vitreous.runs.recipe import Recipe
from vitreous.runs.record import kept_model, write_record
from vitreous.runs.trained import TrainResult
from vitreous.tasks.base import Task
from vitreous.train.checkpoint import Checkpoints
from vitreous.train.config import TrainConfig
from vitreous.train.loop import Outcome, Trainer
from vitreous.train.parallel import World, join
from vitreous.train.probe import fit_head, is_new

#: Settings that a resumed run may change: those that change nothing that is learned, and the cures of a diverged run.
FREE = {f"train.{name}" for name in ("device", "workers", "log_every", "keep", "checkpoint_every", "parallel", "clip")}
FREE |= {"train.optimizer.lr", "train.optimizer.matrix_lr", "train.schedule.warmup"}
#: Settings that runs of earlier versions do not name, with what they did.
DEFAULTS = {"train.patience": 0, "train.new_head": "random"}


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
    need_same_data(prepared, world)
    opened = world.together(lambda: open_folder(folder, recipe, prepared, resume=resume))
    notes = [*(opened.notes if opened else ()), *start_head(prepared, recipe.train, folder, world)]
    trainer = Trainer(
        prepared.model,
        recipe.task,
        prepared.train,
        valid=prepared.valid,
        augment=recipe.augment,
        config=recipe.train,
        folder=folder,
        world=world,
        papers=opened.papers if opened else None,
    )
    outcome = trainer.fit(resume=resume, notes=notes)
    facts = trainer.objective.facts()

    def finish() -> None:
        try:
            write_record(folder, outcome, prepared, recipe, world=world, command=command, facts=facts)
        except OSError as error:
            raise ValueError(
                f"the model is trained and kept in {trainer.kept}, but the record of the run could not be written "
                f"({error.strerror or error}); make room there and go on with --resume"
            ) from None

    world.together(finish)
    return outcome


def start_head(prepared: Prepared, config: TrainConfig, folder: Path, world: World) -> list[str]:
    """Fit a new classifier to the features, where that is asked for and no checkpoint will replace it."""
    head = getattr(prepared.model, "head", None)
    checkpoints = Checkpoints(folder / "checkpoints", keep=config.keep, world=world)
    if config.new_head == "random" or (head is not None and not is_new(head)) or checkpoints.newest():
        return []
    return [fit_head(prepared.model, prepared.train, device=world.device, workers=config.workers)]


def need_same_data(prepared: Prepared, world: World) -> None:
    """Processes that see different data would wait for each other for ever."""
    valid = prepared.valid
    own = (len(prepared.train), 0 if valid is None else len(valid), prepared.train.classes)
    every = world.gathered(own)
    if other := next((rank for rank, found in enumerate(every) if found != every[0]), 0):
        (train, valid, _), (others, other_valid, _) = every[0], every[other]
        raise ValueError(
            f"processes found different data: process 0 {train:,} training and {valid:,} validation images, process "
            f"{other} {others:,} and {other_valid:,}, or other classes; give all of them the same files"
        )


@dataclass(frozen=True)
class Opened:
    """A run folder that is ready: what else was written into it, and what is to be said."""

    papers: dict[Path, bytes]
    notes: list[str]


def open_folder(folder: Path, recipe: Recipe, prepared: Prepared, *, resume: bool) -> Opened:
    """A new run needs a folder without a run in it; a resumed one the settings and data of before."""
    described, data = json.loads(json.dumps(recipe.to_json())), fingerprint(prepared, recipe.data.source)
    notes: list[str] = []
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        if is_run(folder):
            if not resume:
                raise ValueError(
                    f"{folder} holds a run already; add --resume to go on with it, or choose another --output"
                )
            data, notes = same_run(folder, described, data, prepared)
        if (folder / "log.jsonl").is_dir():
            raise ValueError(f"{folder / 'log.jsonl'} is a folder, where the log belongs; choose another --output")
        papers = {
            folder / "config.json": json.dumps(described, indent=1).encode(),
            folder / "data.json": data.to_bytes(),
        }
        for path, content in papers.items():
            write_atomically(path, content)
    except OSError as error:
        where = error.filename or folder
        raise ValueError(f"cannot write to {where} ({error.strerror}); choose another --output") from None
    return Opened(papers, notes)


def same_run(
    folder: Path, described: dict[str, Any], data: Fingerprint, prepared: Prepared
) -> tuple[Fingerprint, list[str]]:
    """Refuse to go on with other settings or data; what to remember of the data, and what is to be said."""
    config, known = folder / "config.json", folder / "data.json"
    notes: list[str] = []
    before = read_settings(config) if config.exists() else None
    if before is None:
        notes.append(f"{config} is gone, so nothing tells whether the settings are those of before")
    else:
        compare(before, described, folder, free=FREE | {"data.source"} if known.exists() else FREE)
    if known.exists():
        data, more = same_data(known, data, folder)
        source = before["data"].get("source") if before else described["data"]["source"]
        if source != described["data"]["source"]:
            more.append(f"the same data as before, in {described['data']['source']} instead of {source}")
        return data, notes + more
    if prepared.held_out and len(data.train.rows):
        raise ValueError(
            f"{folder} has no data.json: an earlier version began it and held out other validation images, some of "
            "which would have been trained on; go on with that version, or start anew in another --output"
        )
    return data, [*notes, "the run kept no record of its data (data.json), so nothing tells whether they are the same"]


def same_data(path: Path, now: Fingerprint, folder: Path) -> tuple[Fingerprint, list[str]]:
    try:
        with open_file(path) as file:
            before = Fingerprint.from_bytes(file.read())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); restore it, or start anew in another --output") from None
    try:
        return compare_data(before, now)
    except ValueError as error:
        raise ValueError(
            f"{folder} was started with other data: {error}; resume with the data of before, or start anew in another "
            f"--output (--weights {folder / 'model.safetensors'} begins with what was learned)"
        ) from None


def read_settings(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as file:
            settings = json.loads(file.read())
        if not all(isinstance(settings[part], dict) for part in ("model", "data", "train")):
            raise ValueError("it holds no settings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}); restore it, or start anew in another --output"
        ) from None
    return dict(settings)


def is_run(folder: Path) -> bool:
    """Whether something was learned there; a start that failed may be tried again."""
    return (folder / "model.safetensors").exists() or any((folder / "checkpoints").glob("step-*.json"))


def compare(before: dict[str, Any], now: dict[str, Any], folder: Path, *, free: Set[str] = FREE) -> None:
    """Refuse to resume with settings that change what is learned, and tell which."""
    old, new = DEFAULTS | dict(flat(before)), dict(flat(now))
    changed = [
        f"{name} was {old.get(name, 'not set')}, is {value}"
        for name, value in new.items()
        if old.get(name) != value and name not in free
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
