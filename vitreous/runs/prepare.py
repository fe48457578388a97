"""What a recipe's words stand for: data opened, model built, weights loaded, preprocessing settled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitreous.data.adapter import Adapted
from vitreous.data.base import ArrayDataset, Dataset, FileDataset
from vitreous.data.foreign import is_described
from vitreous.data.memory import in_memory, memory_needed, unreadable
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits
from vitreous.models.base import Model
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.runs.start import start_with
from vitreous.spec import Labels, Preprocess, Spec
from vitreous.tasks.base import Task
from vitreous.weights.load import load_weights

MEMORY_LIMIT = 4 * 10**9  # bytes of images kept in memory when nobody says otherwise


@dataclass(frozen=True)
class Prepared:
    """What a recipe's words stand for: the model as it starts and the data it learns from."""

    model: Model
    train: Dataset
    valid: Dataset | None
    notes: tuple[str, ...]
    held_out: bool = False  # whether the validation images were taken out of the training set


def prepare(recipe: Recipe, *, splits: Splits | None = None, start: Model | None = None) -> Prepared:
    """Open the data, build the model for its classes, load weights, settle the preprocessing.

    ``splits`` and ``start`` are data and a model that were given as objects: the recipe only names them.
    """
    splits = splits or open_named(recipe)
    notes = list(splits.notes)
    train, valid = splits.train, choose_split(splits, recipe.data)
    if recipe.data.limit:
        train, valid = first(train, recipe.data.limit), valid and first(valid, recipe.data.limit)
    torch.manual_seed(recipe.train.seed)
    config = recipe.model.override(num_classes=len(train.classes))
    if start is not None:
        model, more = start_with(start, config, train.classes)
        notes += more
    else:
        model = config.build()
        notes += start_from(model, recipe.weights) if recipe.weights else []
    model.spec = spec_of(model, train, recipe.task, pretrained=bool(recipe.weights))
    train, more = remembered(train, recipe.data.memory)
    valid, most = remembered(valid, recipe.data.memory) if valid is not None else (None, [])
    held_out = splits.held_out and recipe.data.valid == "valid"
    return Prepared(model, train, valid, tuple(notes + more + most), held_out)


def open_named(recipe: Recipe) -> Splits:
    """The data that a recipe names, if it is no Python object."""
    if is_described(recipe.data.source) and not Path(recipe.data.source).exists():
        raise ValueError(
            f"the data {recipe.data.source!r} was given in Python, so that it cannot be opened by its name; go on "
            "from Python, with vt.train(…, resume=True)"
        )
    return open_data(
        recipe.data.source,
        target=recipe.task.targets,
        valid_share=recipe.data.valid_share,
        seed=recipe.data.seed,
        image_size=recipe.model.image_size,
    )


def choose_split(splits: Splits, data: DataConfig) -> Dataset | None:
    if data.valid == "test" and splits.test is None:
        raise ValueError(f"{data.source} has no test split; measure on data.valid valid")
    return splits.test if data.valid == "test" else splits.valid


def first(data: Dataset, number: int) -> Dataset:
    """A few images that differ: evenly spread over the set."""
    return data.subset(np.linspace(0, len(data) - 1, min(number, len(data))).astype(np.int64))


def start_from(model: Model, weights: str) -> list[str]:
    report = load_weights(model, weights)
    return [f"weights from {weights}: {report}"]


def spec_of(model: Model, train: Dataset, task: Task, *, pretrained: bool) -> Spec:
    """How images are prepared, what the classes are called, what the outputs mean."""
    preprocess = preprocess_of(model, train, pretrained)
    if task.sees_all:
        preprocess = replace(preprocess, fit="letterbox")
    return Spec(preprocess, Labels(train.classes), task.meaning)


def preprocess_of(model: Model, train: Dataset, pretrained: bool) -> Preprocess:
    """As the weights expect; from scratch, images of one size are normalized by their own mean and deviation."""
    own = replace(model.spec.preprocess, image_size=model.config.image_size)
    if isinstance(train, ArrayDataset):
        own = replace(own, crop_ratio=1.0)
        if not pretrained and train.num_channels == own.num_channels:
            mean, std = statistics(train)
            own = replace(own, mean=mean, std=std)
    return own


def statistics(data: ArrayDataset, number: int = 2000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, of at most ``number`` images spread over the set."""
    indices = np.linspace(0, len(data) - 1, min(number, len(data))).astype(np.int64)
    pixels = data.pixels(indices).astype(np.float64) / 255
    mean, std = pixels.mean(axis=(0, 2, 3)), pixels.std(axis=(0, 2, 3))
    return tuple(round(float(v), 4) for v in mean), tuple(round(max(float(v), 0.01), 4) for v in std)


def remembered(data: Dataset, memory: str) -> tuple[Dataset, list[str]]:
    """The set decoded once into memory where it fits."""
    if not isinstance(data, FileDataset) or memory == "no" or (isinstance(data, Adapted) and data.changes):
        return data, []
    needed = memory_needed(data)
    if memory == "auto" and needed > MEMORY_LIMIT:
        return data, []
    decoded, broken = in_memory(data)
    notes = [f"{len(decoded):,} images are kept in memory as bytes ({needed / 1e6:,.0f} MB)"]
    return decoded, notes + ([unreadable(broken, len(data))] if broken else [])
