"""From the arguments of :func:`vitreous.train` to a recipe, with whatever of them no recipe can hold."""

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
from vitreous.runs.choose import Choice, choose_augmentation, choose_model, choose_training
from vitreous.runs.given_data import GivenData, open_given
from vitreous.runs.recipe import Recipe, find_recipe, list_recipes
from vitreous.runs.start import given_in_python, has_learned
from vitreous.samples import Classes, Masks, MultiLabels, Targets
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.multilabel import MultiLabel
from vitreous.tasks.segment import Segment
from vitreous.train.config import TrainConfig
from vitreous.weights.published import PUBLISHED

OPTION = re.compile(r"(?<![\w-])--([a-z][a-z_.-]*[a-z])")
AnyModel = Model | ModelConfig | Recipe | str | os.PathLike[str] | None
TASKS: dict[type[Targets], Task] = {Classes: Classify(smoothing=0.1), MultiLabels: MultiLabel(), Masks: Segment()}


@dataclass(frozen=True)
class Start:
    """What was given as the model: a name, a config or a model, with weights by name; all empty: to be chosen."""

    name: str = ""
    config: ModelConfig | None = None
    model: Model | None = None
    weights: str = ""

    @property
    def target(self) -> type[Targets] | None:
        """The kind of targets that only this model can learn from; None for a backbone, which any task may use."""
        if self.config is None or isinstance(self.config, Config):
            return None
        with torch.device("meta"):
            return Task.table()[self.config.build().task].targets


@dataclass(frozen=True)
class Settings:
    """What replaces a recipe's settings or the chosen ones, where it is given."""

    task: Task | None = None
    augment: Augment | None = None
    config: TrainConfig | None = None
    epochs: float | None = None
    batch_size: int | None = None
    lr: float | None = None

    @classmethod
    def given(cls, *, task: Any, augment: Any, config: Any, **numbers: Any) -> Settings:
        """As they were given: each of its type, a task also by name."""
        if augment is not None and not isinstance(augment, Augment):
            raise ValueError(f"augment must be a vt.Augment(…), got {augment!r:.80}")
        task = None if task is None else Task.given("task", task)
        return cls(task, augment, None if config is None else TrainConfig.given("config", config), **numbers)

    @property
    def decided(self) -> set[str]:
        """Names of the choices that are not made where these settings are given."""
        given = {"length": self.epochs, "batch": self.batch_size, "rate": self.lr}
        return {name for name, value in given.items() if value is not None}

    def over(self, recipe: Recipe) -> Recipe:
        train = self.config or recipe.train
        if self.epochs is not None:
            train = train.override(epochs=self.epochs, steps=0)
        if self.batch_size is not None:
            train = train.override(batch_size=self.batch_size)
        if self.lr is not None:
            train = train.override(optimizer=train.optimizer.override(lr=self.lr))
        return replace(recipe, task=self.task or recipe.task, augment=self.augment or recipe.augment, train=train)


@dataclass(frozen=True)
class Plan:
    """A run that is ready to be prepared: ``splits`` and ``start`` are what the recipe can only name."""

    recipe: Recipe
    folder: Path
    chosen: tuple[Choice, ...] = ()
    splits: Splits | None = None
    start: Model | None = None


def plan(model: AnyModel, data: Any, output: Any, *, valid: Any, weights: Any, settings: Settings) -> Plan:
    """The recipe that was given, with what was given beside it, or one chosen for the data."""
    output, weights = checked("output", output, str), checked("weights", weights, str)
    start = read_model(model, weights)
    if isinstance(start, Recipe):
        if isinstance(data, str | os.PathLike) and not output:
            data, output = None, need_no_data(os.fspath(data))
        name = Path(model).stem if isinstance(model, str | os.PathLike) else "latest"
        return plan_recipe(start, data, valid, settings=settings, folder=Path(output or f"runs/{name}"))
    if data is None:
        raise ValueError("there is nothing to learn from: give data, as in vt.train('vit_tiny_16', 'photos/')")
    target = settings.task.targets if settings.task is not None else start.target
    names = start.model.spec.labels.names if start.model is not None else ()
    size = start.config.image_size if start.config is not None else None
    given = open_given(data, valid, target=target, image_size=size, classes=names)
    recipe, chosen = choose_recipe(start, given, settings)
    chosen = [replace(one, reason=in_python(one.reason)) for one in chosen if one.setting not in settings.decided]
    folder = Path(output or f"runs/{Path(data).stem if isinstance(data, str | os.PathLike) else 'latest'}")
    splits = None if given.by_name else given.splits
    return Plan(settings.over(recipe), folder, tuple(chosen), splits, start.model)


def plan_recipe(recipe: Recipe, data: Any, valid: Any, *, settings: Settings, folder: Path) -> Plan:
    recipe = settings.over(recipe)
    if data is None and valid is None:
        return Plan(recipe, folder)
    given = open_given(
        recipe.data.source if data is None else data,
        valid,
        config=recipe.data,
        target=recipe.task.targets,
        image_size=recipe.model.image_size,
    )
    recipe = replace(recipe, data=given.config)
    return Plan(recipe, folder, splits=None if given.by_name else given.splits)


def need_no_data(path: str) -> str:
    """The run's folder in ``vt.train(recipe, folder)``, if it does not look like data."""
    if looks_like_data(path):
        raise ValueError(
            f"vt.train(recipe, {path!r}) takes it for the run's folder, since a recipe brings its data, but it looks "
            f"like data; to train the recipe on it say where to keep the run: vt.train(recipe, {path!r}, output=…)"
        )
    return path


def looks_like_data(path: str) -> bool:
    """Whether it is a word, a file, or a folder with folders in it that is no run's."""
    if path in EMBEDDED or os.path.isfile(path):
        return True
    try:
        with os.scandir(path) as entries:
            folders = {entry.name for entry in entries if entry.is_dir()}
    except OSError:
        return False
    return bool(folders) and "checkpoints" not in folders and not os.path.exists(os.path.join(path, "config.json"))


@contextmanager
def words_of_python() -> Iterator[None]:
    """Errors that speak of the command line's options, in the words of Python: ``resume=True`` for ``--resume``."""
    try:
        yield
    except ValueError as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (in_python(error.args[0]),)
        raise


def in_python(text: str) -> str:
    return OPTION.sub(lambda match: "resume=True" if match[1] == "resume" else match[1].replace("-", "_"), text)


def read_model(model: Any, weights: str) -> Start | Recipe:
    model = getattr(model, "_orig_mod", model) if isinstance(model, nn.Module) else model  # of torch.compile
    if isinstance(model, Model | ModelConfig):
        if weights and isinstance(model, Model):
            raise ValueError("the model brings its own weights; give its config to start from others, or load them")
        own = model.config if isinstance(model, Model) else model
        return Start(config=own, model=model if isinstance(model, Model) else None, weights=weights)
    if isinstance(model, Recipe):
        return replace(model, weights=weights or model.weights)
    if isinstance(model, str | os.PathLike):
        return read_name(os.fspath(model), weights)
    if model is None:
        return Start(weights=weights)
    if isinstance(model, Engine):
        raise ValueError("an accelerated model cannot be trained; give the model that it was made of (its .model)")
    raise ValueError(
        f"model is a model's name, a Vitreous model or its config, weights to start from, or a recipe; got "
        f"{type(model).__name__}"
    )


def read_name(name: str, weights: str) -> Start | Recipe:
    if name in MODELS:
        return Start(name=name, weights=weights)
    if name.endswith(".py") or name in list_recipes():
        recipe = find_recipe(name)
        return replace(recipe, weights=weights or recipe.weights)
    if name not in PUBLISHED and not Path(name).exists():
        near = did_you_mean(name, [*MODELS, *list_recipes(), *PUBLISHED])
        raise ValueError(f"there is no model, no recipe and no weights {name!r}{near} (vt.list_models() shows all)")
    if weights:
        raise ValueError(f"{name} are weights to start from, and weights={weights!r} are others; give one of them")
    return Start(weights=name)


def choose_recipe(start: Start, given: GivenData, settings: Settings) -> tuple[Recipe, list[Choice]]:
    """What the command line's ``--data`` chooses for such data, where it was not given."""
    train, chosen = given.splits.train, list[Choice]()
    learned = start.model is not None and has_learned(start.model)
    config = start.config or fitted(choose_model(train, start.name, start.weights, chosen), train)
    task = settings.task or choose_task(train, chosen)
    if issubclass(task.targets, Masks) and isinstance(config, Config):
        config = SegmenterConfig(backbone=config, image_size=config.image_size, num_channels=config.num_channels)
    basis: Any = config.backbone if isinstance(config, SegmenterConfig) else config
    pretrained = learned or bool(start.weights)
    training = settings.config or choose_training(len(train), pretrained, basis, chosen)
    augment = settings.augment or choose_augmentation(train, basis, pretrained, chosen)
    weights = given_in_python(start.model) if learned and start.model is not None else start.weights
    return Recipe(config, given.config, augment, task, training, weights), chosen


def fitted(config: Config, train: Dataset) -> Config:
    """With the data's channels, where its images come as they are."""
    return config.override(num_channels=train.num_channels) if isinstance(train, ArrayDataset) else config


def choose_task(train: Dataset, chosen: list[Choice]) -> Task:
    if train.target not in TASKS:
        raise ValueError(f"the data has {train.target.words}, and no task learns from these; give data with labels")
    task = TASKS[train.target]
    chosen.append(Choice("task", type(task).__name__, f"the data has {train.target.words}"))
    return task
