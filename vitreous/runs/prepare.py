"""What a recipe's words stand for: data opened, model built, weights loaded, preprocessing settled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from vitreous.data.base import Dataset, Pictures, Pixels
from vitreous.data.memory import in_memory, memory_needed, unreadable
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits
from vitreous.models.base import Backbone
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.spec import Labels, Preprocess, Spec
from vitreous.tasks.multilabel import MultiLabel
from vitreous.weights.load import load_weights

MEMORY_LIMIT = 4 * 10**9  # bytes of pictures kept in memory when nobody says otherwise


@dataclass(frozen=True)
class Prepared:
    """What a recipe's words stand for: the model as it starts and the data it learns from."""

    model: Backbone
    train: Dataset
    valid: Dataset | None
    notes: tuple[str, ...]


def prepare(recipe: Recipe) -> Prepared:
    """Open the data, build the model for its classes, load weights, settle the preprocessing."""
    splits = open_data(
        recipe.data.source,
        valid_share=recipe.data.valid_share,
        seed=recipe.data.seed,
        image_size=recipe.model.image_size,
    )
    if splits.train.multi_label and not isinstance(recipe.task, MultiLabel):
        raise ValueError(f"{recipe.data.source} has several labels a picture, {type(recipe.task).__name__} learns one")
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
    return Prepared(model, train, valid, tuple(notes + more + most))


def choose_split(splits: Splits, data: DataConfig) -> Dataset | None:
    if data.valid == "test" and splits.test is None:
        raise ValueError(f"{data.source} has no test split; measure on data.valid valid")
    return splits.test if data.valid == "test" else splits.valid


def first(data: Dataset, number: int) -> Dataset:
    """A few pictures that differ: evenly spread over the set."""
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
    return arrays, notes + ([unreadable(broken, len(data))] if broken else [])
