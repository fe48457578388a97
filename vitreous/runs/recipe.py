"""Recipes: model, data, augmentation, task and training of a reproducible run in one object.

A recipe file defines ``recipe = Recipe(…)``; its docstring gives the command and the measured results.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import traceback
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vitreous.data.augment import Augment
from vitreous.models.base import ModelConfig
from vitreous.options import Count, Options, Rate, did_you_mean
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.distill import Distill
from vitreous.train.config import TrainConfig


@dataclass(frozen=True)
class DataConfig(Options):
    """The data source of a run and its splits."""

    source: str = "shapes"  # a folder, CSV file, shards, CIFAR folder, or the built-in shapes or digits
    _: KW_ONLY
    valid_share: Rate = 0.1  # fraction of each class to hold out if the data has no validation split; 0: none
    valid: Literal["valid", "test"] = "valid"  # split to evaluate on
    memory: Literal["auto", "yes", "no"] = "auto"  # cache decoded images in memory
    limit: Count = 0  # maximum number of images per split, evenly spaced; 0: all
    seed: Count = 0  # of the random held-out split


@dataclass(frozen=True)
class Recipe:
    """All settings of a training run.

    >>> recipe = Recipe(vt.find_config("vit_tiny_16"), DataConfig("photos/"), train=vt.TrainConfig(epochs=30))
    >>> vt.train(recipe, output="runs/mine")
    """

    model: ModelConfig
    data: DataConfig = field(default_factory=DataConfig)
    augment: Augment = field(default_factory=Augment)
    task: Task = field(default_factory=Classify)
    train: TrainConfig = field(default_factory=TrainConfig)
    weights: str = ""  # pretrained weights: a file or a published name; empty: from scratch

    def smoke(self) -> Recipe:
        """Return a smoke test of the recipe: two steps on 16 synthetic images, on the CPU."""
        data = replace(self.data, source="shapes", limit=16, valid="valid")
        short = replace(self.train, steps=2, batch_size=4, accumulate=1, log_every=1)
        plain = replace(short, compile=False, device="cpu", precision="fp32")
        return replace(self, data=data, train=plain, task=self.smoke_task(), weights="")

    def smoke_task(self) -> Task:
        """Return the task, with a randomly initialized model in place of a distillation teacher."""
        if not isinstance(self.task, Distill):
            return self.task
        return self.task.override(teacher=self.model.override(num_classes=10).build())

    def to_json(self) -> dict[str, Any]:
        model = {"family": type(self.model).__name__, **self.model.to_json()}
        parts = {"data": self.data.to_json(), "augment": self.augment.to_json(), "train": self.train.to_json()}
        return {"model": model, **parts, "task": self.task.to_json(), "weights": self.weights}


def list_recipes() -> dict[str, str]:
    """Return the built-in recipes by name, with the first line of their docstrings."""
    import vitreous.recipes as package

    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    modules = {name: importlib.import_module(f"vitreous.recipes.{name}") for name in names}
    return {
        name: (module.__doc__ or "").strip().splitlines()[0]
        for name, module in modules.items()
        if isinstance(getattr(module, "recipe", None), Recipe)
    }


def find_recipe(name: str) -> Recipe:
    """Return a built-in recipe by name, or the ``recipe`` defined in a Python file."""
    if name.endswith(".py") or os.sep in name:
        recipe = getattr(import_recipe_file(Path(name)), "recipe", None)
        if not isinstance(recipe, Recipe):
            has = "" if recipe is None else f" (its `recipe` is of the type {type(recipe).__name__})"
            raise ValueError(f"{name} defines no `recipe = Recipe(…)`{has}")
        return recipe
    known = list_recipes()
    if name not in known:
        raise ValueError(
            f"there is no recipe {name!r}{did_you_mean(name, known)} (give a recipe file by its path, as in x.py)"
        )
    recipe = importlib.import_module(f"vitreous.recipes.{name}").recipe
    assert isinstance(recipe, Recipe)
    return recipe


def import_recipe_file(path: Path) -> Any:
    """Import a recipe file as a module; errors name the file and line."""
    if not path.is_file():
        raise ValueError(f"there is no recipe file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.suffix == ".py" else None
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file; a recipe file ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
        where = f"{path}, line {line}" if line else f"{path}"
        raise ValueError(f"{where}: {type(error).__name__}: {getattr(error, 'msg', None) or error}") from error
    return module
