"""Convert the arguments of :func:`vitreous.train` to a recipe, plus the objects that a recipe cannot hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.data.augment import Augment
from vitreous.data.base import ArrayDataset, Dataset
from vitreous.data.sources import EMBEDDED
from vitreous.data.splits import Splits
from vitreous.models import MODELS
from vitreous.models.base import Config, Model, ModelConfig
from vitreous.models.engine import Engine
from vitreous.models.segmenter import SegmenterConfig
from vitreous.options import checked, did_you_mean
from vitreous.runs.choose import ChosenSetting, choose_augmentation, choose_model, choose_training
from vitreous.runs.given_data import GivenData, open_data_argument
from vitreous.runs.recipe import Recipe, find_recipe, list_recipes
from vitreous.runs.start import in_memory_name, is_trained
from vitreous.samples import Classes, Masks, MultiLabels, Targets
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.multilabel import MultiLabel
from vitreous.tasks.segment import Segment
from vitreous.train.config import TrainConfig
from vitreous.weights.published import PUBLISHED

OPTION = re.compile(r"(?<![\w-])--([a-z][a-z_.-]*[a-z])")
AnyModel = Model | ModelConfig | Recipe | str | os.PathLike[str] | None
DEFAULT_TASKS: dict[type[Targets], Task] = {
    Classes: Classify(smoothing=0.1),
    MultiLabels: MultiLabel(),
    Masks: Segment(),
}


@dataclass(frozen=True)
class StartingPoint:
    """The ``model`` and ``weights`` arguments, parsed; if all fields are empty, a model is chosen."""

    name: str = ""
    config: ModelConfig | None = None
    model: Model | None = None
    weights: str = ""

    @property
    def target(self) -> type[Targets] | None:
        """The only target type that this model can be trained on; None for a backbone, which suits every task."""
        if self.config is None or isinstance(self.config, Config):
            return None
        with torch.device("meta"):
            return Task.table()[self.config.build().task].targets


@dataclass(frozen=True)
class Overrides:
    """Arguments that override the settings of a recipe or the chosen settings; None: not given."""

    task: Task | None = None
    augment: Augment | None = None
    config: TrainConfig | None = None
    epochs: float | None = None
    batch_size: int | None = None
    lr: float | None = None

    @classmethod
    def parse(cls, *, task: Any, augment: Any, config: Any, **numbers: Any) -> Overrides:
        """Validate the types of the arguments; a task may be given by name."""
        if augment is not None and not isinstance(augment, Augment):
            raise ValueError(f"augment must be a vt.Augment(…), got {augment!r:.80}")
        task = None if task is None else Task.given("task", task)
        return cls(task, augment, None if config is None else TrainConfig.given("config", config), **numbers)

    @property
    def overridden(self) -> set[str]:
        """The names of chosen settings (:class:`ChosenSetting`) that these arguments override."""
        given = {"length": self.epochs, "batch": self.batch_size, "rate": self.lr}
        return {name for name, value in given.items() if value is not None}

    def apply(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the given settings replaced."""
        train = self.config or recipe.train
        if self.epochs is not None:
            train = train.override(epochs=self.epochs, steps=0)
        if self.batch_size is not None:
            train = train.override(batch_size=self.batch_size)
        if self.lr is not None:
            train = train.override(optimizer=train.optimizer.override(lr=self.lr))
        return replace(recipe, task=self.task or recipe.task, augment=self.augment or recipe.augment, train=train)


@dataclass(frozen=True)
class RunPlan:
    """A run before preparation; ``splits`` and ``start`` are data and model given as objects."""

    recipe: Recipe
    folder: Path
    chosen: tuple[ChosenSetting, ...] = ()
    splits: Splits | None = None
    start: Model | None = None


def plan_run(model: AnyModel, data: Any, output: Any, *, valid: Any, weights: Any, settings: Overrides) -> RunPlan:
    """Take the given recipe, or choose one for the data, and apply the overrides."""
    output, weights = checked("output", output, str), checked("weights", weights, str)
    start = parse_model(model, weights)
    if isinstance(start, Recipe):
        if isinstance(data, str | os.PathLike) and not output:
            data, output = None, check_run_folder(os.fspath(data))
        name = Path(model).stem if isinstance(model, str | os.PathLike) else "latest"
        return plan_recipe(start, data, valid, settings=settings, folder=Path(output or f"runs/{name}"))
    if data is None:
        raise ValueError("no training data: pass data, as in vt.train('vit_tiny_16', 'photos/')")
    target = settings.task.targets if settings.task is not None else start.target
    names = start.model.spec.labels.names if start.model is not None else ()
    size = start.config.image_size if start.config is not None else None
    given = open_data_argument(data, valid, target=target, image_size=size, classes=names)
    recipe, chosen = recipe_for_data(start, given, settings)
    chosen = [each for each in chosen if each.setting not in settings.overridden]
    chosen = [replace(each, reason=to_python_terms(each.reason)) for each in chosen]
    folder = Path(output or f"runs/{Path(data).stem if isinstance(data, str | os.PathLike) else 'latest'}")
    splits = None if given.reopenable else given.splits
    return RunPlan(settings.apply(recipe), folder, tuple(chosen), splits, start.model)


def plan_recipe(recipe: Recipe, data: Any, valid: Any, *, settings: Overrides, folder: Path) -> RunPlan:
    """Apply overrides to a recipe, and replace its data if other data is given."""
    recipe = settings.apply(recipe)
    if data is None and valid is None:
        return RunPlan(recipe, folder)
    given = open_data_argument(
        recipe.data.source if data is None else data,
        valid,
        config=recipe.data,
        target=recipe.task.targets,
        image_size=recipe.model.image_size,
    )
    recipe = replace(recipe, data=given.config)
    return RunPlan(recipe, folder, splits=None if given.reopenable else given.splits)


def check_run_folder(path: str) -> str:
    """Return the run folder of ``vt.train(recipe, folder)``, or raise if it looks like data."""
    if looks_like_data(path):
        raise ValueError(
            f"vt.train(recipe, {path!r}) takes the path as the run folder, since a recipe includes its data, but "
            f"it looks like data; to train on it, also give the run folder: vt.train(recipe, {path!r}, output=…)"
        )
    return path


def looks_like_data(path: str) -> bool:
    """Return whether a path is a built-in dataset, a file, or a folder with subfolders that is not a run folder."""
    if path in EMBEDDED or os.path.isfile(path):
        return True
    try:
        with os.scandir(path) as entries:
            folders = {entry.name for entry in entries if entry.is_dir()}
    except OSError:
        return False
    return bool(folders) and "checkpoints" not in folders and not os.path.exists(os.path.join(path, "config.json"))


@contextmanager
def errors_in_python_terms() -> Iterator[None]:
    """Replace command-line options in error messages by Python arguments: ``resume=True`` for ``--resume``."""
    try:
        yield
    except ValueError as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (to_python_terms(error.args[0]),)
        raise


def to_python_terms(text: str) -> str:
    return OPTION.sub(lambda match: "resume=True" if match[1] == "resume" else match[1].replace("-", "_"), text)


def parse_model(model: Any, weights: str) -> StartingPoint | Recipe:
    """Validate the ``model`` argument of any type."""
    model = getattr(model, "_orig_mod", model) if isinstance(model, nn.Module) else model  # unwrap torch.compile
    if isinstance(model, Model | ModelConfig):
        if weights and isinstance(model, Model):
            raise ValueError(
                "the model already has weights; pass model.config to start from other weights, or load them first"
            )
        config = model.config if isinstance(model, Model) else model
        return StartingPoint(config=config, model=model if isinstance(model, Model) else None, weights=weights)
    if isinstance(model, Recipe):
        return replace(model, weights=weights or model.weights)
    if isinstance(model, str | os.PathLike):
        return parse_name(os.fspath(model), weights)
    if model is None:
        return StartingPoint(weights=weights)
    if isinstance(model, Engine):
        raise ValueError("an accelerated model cannot be trained; pass the original model (its .model)")
    raise ValueError(
        f"model must be a model name, a Vitreous model or its config, pretrained weights, or a recipe; got "
        f"{type(model).__name__}"
    )


def parse_name(name: str, weights: str) -> StartingPoint | Recipe:
    """Look up a model, a recipe (by name or file), or weights (published or a file)."""
    if name in MODELS:
        return StartingPoint(name=name, weights=weights)
    if name.endswith(".py") or name in list_recipes():
        recipe = find_recipe(name)
        return replace(recipe, weights=weights or recipe.weights)
    if name not in PUBLISHED and not Path(name).exists():
        near = did_you_mean(name, [*MODELS, *list_recipes(), *PUBLISHED])
        raise ValueError(f"no model, recipe or weights named {name!r}{near} (vt.list_models() lists all models)")
    if weights:
        raise ValueError(f"both model={name!r} and weights={weights!r} are pretrained weights; pass only one of them")
    return StartingPoint(weights=name)


def recipe_for_data(start: StartingPoint, given: GivenData, settings: Overrides) -> tuple[Recipe, list[ChosenSetting]]:
    """Choose model, task, training and augmentation settings for the data, except those that are given."""
    train, chosen = given.splits.train, list[ChosenSetting]()
    trained = start.model is not None and is_trained(start.model)
    config = start.config or match_channels(choose_model(train, start.name, start.weights, chosen), train)
    task = settings.task or choose_task(train, chosen)
    if issubclass(task.targets, Masks) and isinstance(config, Config):
        config = SegmenterConfig(backbone=config, image_size=config.image_size, num_channels=config.num_channels)
    backbone: Any = config.backbone if isinstance(config, SegmenterConfig) else config
    pretrained = trained or bool(start.weights)
    training = settings.config or choose_training(len(train), pretrained, backbone, chosen)
    augment = settings.augment or choose_augmentation(train, backbone, pretrained, chosen)
    weights = in_memory_name(start.model) if trained and start.model is not None else start.weights
    return Recipe(config, given.config, augment, task, training, weights), chosen


def match_channels(config: Config, train: Dataset) -> Config:
    """Set the number of input channels to that of an array dataset."""
    return config.override(num_channels=train.num_channels) if isinstance(train, ArrayDataset) else config


def choose_task(train: Dataset, chosen: list[ChosenSetting]) -> Task:
    """Choose the task for the dataset's targets."""
    if train.target not in DEFAULT_TASKS:
        raise ValueError(f"no task supports {train.target.description}; give data with class labels or masks")
    task = DEFAULT_TASKS[train.target]
    chosen.append(ChosenSetting("task", type(task).__name__, f"the data has {train.target.description}"))
    return task
