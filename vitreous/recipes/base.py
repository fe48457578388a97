"""A recipe: model, data, augmentation, task and training in one object that a run can be repeated from.

A recipe file holds one ``recipe = Recipe(…)`` and a docstring with its command and what it measured. ``train`` turns a
recipe into a run folder: config, log, checkpoints, ``model.safetensors``, result, report.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import subprocess
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from vitreous.data.augment import Augment
from vitreous.data.base import Dataset, Pictures, Pixels
from vitreous.data.memory import in_memory, memory_needed
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits
from vitreous.models.base import Backbone, Config, did_you_mean
from vitreous.spec import Labels, Preprocess, Spec
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.distill import Distill
from vitreous.train.config import TrainConfig
from vitreous.train.loop import Outcome, Trainer
from vitreous.train.parallel import World, join
from vitreous.weights.files import write_atomically
from vitreous.weights.load import load_weights

MEMORY_LIMIT = 4 * 10**9  # bytes of pictures kept in memory when nobody says otherwise


@dataclass(frozen=True)
class DataConfig:
    source: str = "shapes"  # a folder, CSV file, shards, CIFAR's folder, or shapes | digits
    valid_share: float = 0.1  # of each class held out where the data has no validation split; 0: none
    valid: Literal["valid", "test"] = "valid"  # which split the run is measured on
    memory: Literal["auto", "yes", "no"] = "auto"  # pictures decoded once and kept as bytes
    limit: int = 0  # only the first pictures of each split, when positive
    seed: int = 0  # of the held-out part


@dataclass(frozen=True)
class Recipe:
    model: Config
    data: DataConfig = field(default_factory=DataConfig)
    augment: Augment = field(default_factory=Augment)
    task: Task = field(default_factory=Classify)
    train: TrainConfig = field(default_factory=TrainConfig)
    weights: str = ""  # a weights file or public name to start from; empty: from scratch

    def smoke(self) -> Recipe:
        """Two steps on a few drawn scenes: does it run at all?"""
        data = replace(self.data, source="shapes", limit=16, valid="valid")
        short = replace(self.train, steps=2, batch_size=4, accumulate=1, log_every=1)
        plain = replace(short, compile=False, device="cpu", precision="fp32")
        return replace(self, data=data, train=plain, task=self.smoke_task(), weights="")

    def smoke_task(self) -> Task:
        """A teacher that knows nothing stands in for one in a file."""
        if not isinstance(self.task, Distill):
            return self.task
        teacher = self.model.override(num_classes=10).build()
        return Distill.with_teacher(teacher, **{**asdict(self.task), "teacher": ""})

    def to_json(self) -> dict[str, Any]:
        model = {"family": type(self.model).__name__, **self.model.to_json()}
        task = {"kind": type(self.task).__name__, **asdict(self.task)}
        parts = {name: asdict(getattr(self, name)) for name in ("data", "augment", "train")}
        return {"model": model, **parts, "task": task, "weights": self.weights}


def list_recipes() -> dict[str, str]:
    """Recipe names with the first line of what they say about themselves."""
    import vitreous.recipes as home

    names = [module.name for module in pkgutil.iter_modules(home.__path__)]
    modules = {name: importlib.import_module(f"vitreous.recipes.{name}") for name in names}
    return {
        name: (module.__doc__ or "").strip().splitlines()[0]
        for name, module in modules.items()
        if isinstance(getattr(module, "recipe", None), Recipe)
    }


def find_recipe(name: str) -> Recipe:
    """A recipe by name, or the ``recipe`` of a Python file."""
    if name.endswith(".py") or os.sep in name:
        recipe = getattr(run_file(Path(name)), "recipe", None)
        if not isinstance(recipe, Recipe):
            raise ValueError(f"{name} defines no `recipe = Recipe(…)`")
        return recipe
    known = list_recipes()
    if name not in known:
        raise ValueError(f"there is no recipe {name!r}{did_you_mean(name, known)} (a file is given by its path, x.py)")
    recipe = importlib.import_module(f"vitreous.recipes.{name}").recipe
    assert isinstance(recipe, Recipe)
    return recipe


def run_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no recipe file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Materials:
    """What a recipe's words stand for: the model as it starts and the data it learns from."""

    model: Backbone
    train: Dataset
    valid: Dataset | None
    notes: tuple[str, ...]


def prepare(recipe: Recipe) -> Materials:
    """Open the data, build the model for its classes, load weights, settle the preprocessing."""
    splits = open_data(
        recipe.data.source,
        valid_share=recipe.data.valid_share,
        seed=recipe.data.seed,
        image_size=recipe.model.image_size,
    )
    notes = list(splits.notes)
    train, valid = splits.train, choose_split(splits, recipe.data)
    if recipe.data.limit:
        train, valid = first(train, recipe.data.limit), valid and first(valid, recipe.data.limit)
    torch.manual_seed(recipe.train.seed)
    model = recipe.model.override(num_classes=len(train.classes)).build()
    if recipe.weights:
        notes += start_from(model, recipe.weights)
    model.spec = Spec(preprocess_of(model, train, bool(recipe.weights)), Labels(train.classes))
    train, more = remembered(train, model, recipe.data.memory)
    valid, most = remembered(valid, model, recipe.data.memory) if valid is not None else (None, [])
    return Materials(model, train, valid, tuple(notes + more + most))


def choose_split(splits: Splits, data: DataConfig) -> Dataset | None:
    if data.valid == "test" and splits.test is None:
        raise ValueError(f"{data.source} has no test split; measure on data.valid valid")
    return splits.test if data.valid == "test" else splits.valid


def first(data: Dataset, number: int) -> Dataset:
    """A few pictures that differ: evenly spread over the set."""
    import numpy as np

    return data.subset(np.linspace(0, len(data) - 1, min(number, len(data))).astype(np.int64))


def start_from(model: Backbone, weights: str) -> list[str]:
    report = load_weights(model, weights)
    return [f"weights from {weights}: {report}"]


def preprocess_of(model: Backbone, train: Dataset, pretrained: bool) -> Preprocess:
    """As the weights expect; from scratch, pictures of one size are normalised by their own mean and deviation."""
    own = replace(model.spec.preprocess, image_size=model.config.image_size)
    if isinstance(train, Pixels):
        own = replace(own, crop_ratio=1.0)
        if not pretrained and train.num_channels == own.num_channels:
            mean, std = statistics(train)
            own = replace(own, mean=mean, std=std)
    return own


def statistics(data: Pixels, number: int = 2000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, of at most ``number`` pictures spread over the set."""
    import numpy as np

    indices = np.linspace(0, len(data) - 1, min(number, len(data))).astype(np.int64)
    pixels = data.pixels(indices).astype(np.float64) / 255
    mean, std = pixels.mean(axis=(0, 2, 3)), pixels.std(axis=(0, 2, 3))
    return tuple(round(float(v), 4) for v in mean), tuple(round(max(float(v), 0.01), 4) for v in std)


def remembered(data: Dataset, model: Backbone, memory: str) -> tuple[Dataset, list[str]]:
    """The set decoded once into memory where it fits, a margin around the crop included."""
    if not isinstance(data, Pictures) or memory == "no":
        return data, []
    height, width = model.spec.preprocess.image_size
    size = (round(height / 0.875), round(width / 0.875))
    needed = memory_needed(data, size, model.config.num_channels)
    if memory == "auto" and needed > MEMORY_LIMIT:
        return data, []
    arrays, broken = in_memory(data, size, num_channels=model.config.num_channels)
    notes = [f"{len(arrays):,} pictures are kept in memory as bytes ({needed / 1e6:,.0f} MB)"]
    if broken:
        where, reason = broken[0]
        notes.append(f"{len(broken):,} pictures could not be read and are left out, e.g. {where} ({reason})")
    return arrays, notes


def train(recipe: Recipe | str, output: str | os.PathLike[str] = "", *, resume: bool = False) -> Outcome:
    """Run a recipe, given whole, by name or by path. The folder gets everything, runs/NAME when none is given.

    ``resume`` goes on from the newest whole checkpoint there; a process restarted by torchrun does so by itself.
    """
    name = Path(recipe).stem if isinstance(recipe, str) else "latest"
    recipe = find_recipe(recipe) if isinstance(recipe, str) else recipe
    world = join(recipe.train.device)
    return train_on(prepare(recipe), recipe, Path(output or f"runs/{name}"), world, resume=resume)


def train_on(
    materials: Materials, recipe: Recipe, folder: Path, world: World, *, resume: bool, command: str = ""
) -> Outcome:
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if world.is_main:
        open_folder(folder, recipe, resume=resume)
    world.wait()
    trainer = Trainer(
        materials.model,
        recipe.task,
        materials.train,
        valid=materials.valid,
        augment=recipe.augment,
        config=recipe.train,
        folder=folder,
        world=world,
    )
    outcome = trainer.fit(resume=resume)
    if world.is_main:
        from vitreous.recipes.record import write_record

        write_record(folder, outcome, materials, recipe, world=world, command=command)
    world.wait()
    return outcome


def open_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """A new run needs a folder without a run in it; a resumed one the same settings as before."""
    config, described = folder / "config.json", json.loads(json.dumps(recipe.to_json()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if resume and config.exists():
            compare(json.loads(config.read_bytes()), described, folder)
        elif config.exists():
            raise ValueError(f"{folder} holds a run already; add --resume to go on with it, or choose another --output")
        write_atomically(config, json.dumps(described, indent=1).encode())
    except OSError as error:
        raise ValueError(f"cannot write to {folder} ({error.strerror}); choose another --output") from None


def compare(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    free = {"device", "workers", "log_every", "keep", "checkpoint_every", "parallel"}  # change nothing that is learned
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


def commit() -> str:
    """The version of the code at hand, as git names it; empty outside a repository."""
    here = Path(__file__).parent
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()
