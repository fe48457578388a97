"""Prepare a run: open the data, build the model, load weights, choose the preprocessing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitreous.data.adapter import AdaptedDataset
from vitreous.data.base import ArrayDataset, Dataset, FileDataset
from vitreous.data.foreign import is_described
from vitreous.data.memory import decode_into_memory, estimate_memory, unreadable_message
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits
from vitreous.models.base import Model
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.runs.start import copy_for_training
from vitreous.spec import Labels, Preprocess, Spec
from vitreous.tasks.base import Task
from vitreous.weights.load import load_weights

MEMORY_LIMIT = 4 * 10**9  # bytes of decoded images to cache with memory="auto"


@dataclass(frozen=True)
class Prepared:
    """The initial model and the datasets of a run, with notes for the user."""

    model: Model
    train: Dataset
    valid: Dataset | None
    notes: tuple[str, ...]
    held_out: bool = False  # whether the validation images were held out from the training set


def prepare_run(recipe: Recipe, *, splits: Splits | None = None, start: Model | None = None) -> Prepared:
    """Open the data, build the model for its classes, load weights, and choose the preprocessing.

    ``splits`` and ``start`` are data and a model given as objects, for which the recipe has only descriptions.
    """
    splits = splits or open_recipe_data(recipe)
    notes = list(splits.notes)
    train, valid = splits.train, choose_split(splits, recipe.data)
    if recipe.data.limit:
        train, valid = take_evenly(train, recipe.data.limit), valid and take_evenly(valid, recipe.data.limit)
    torch.manual_seed(recipe.train.seed)
    config = recipe.model.override(num_classes=len(train.classes))
    if start is not None:
        model, more = copy_for_training(start, config, train.classes)
        notes += more
    else:
        model = config.build()
        notes += start_from(model, recipe.weights) if recipe.weights else []
    model.spec = build_spec(model, train, recipe.task, pretrained=bool(recipe.weights))
    train, more = cache_in_memory(train, recipe.data.memory)
    valid, most = cache_in_memory(valid, recipe.data.memory) if valid is not None else (None, [])
    held_out = splits.held_out and recipe.data.valid == "valid"
    return Prepared(model, train, valid, tuple(notes + more + most), held_out)


def open_recipe_data(recipe: Recipe) -> Splits:
    """Open the data source of a recipe, or raise if it was a Python object."""
    if is_described(recipe.data.source) and not Path(recipe.data.source).exists():
        raise ValueError(
            f"the data {recipe.data.source!r} was a Python object and cannot be opened by name; resume from Python "
            "with vt.train(…, resume=True)"
        )
    return open_data(
        recipe.data.source,
        target=recipe.task.targets,
        valid_share=recipe.data.valid_share,
        seed=recipe.data.seed,
        image_size=recipe.model.image_size,
    )


def choose_split(splits: Splits, data: DataConfig) -> Dataset | None:
    """Return the split to evaluate on."""
    if data.valid == "test" and splits.test is None:
        raise ValueError(f"{data.source} has no test split; use data.valid valid")
    return splits.test if data.valid == "test" else splits.valid


def take_evenly(data: Dataset, number: int) -> Dataset:
    """Return a subset of ``number`` images, evenly spaced over the dataset."""
    return data.subset(np.linspace(0, len(data) - 1, min(number, len(data))).astype(np.int64))


def start_from(model: Model, weights: str) -> list[str]:
    report = load_weights(model, weights)
    return [f"weights from {weights}: {report}"]


def build_spec(model: Model, train: Dataset, task: Task, *, pretrained: bool) -> Spec:
    """Build the model's spec: preprocessing, class names, and the task of its outputs."""
    preprocess = choose_preprocess(model, train, pretrained)
    if task.needs_full_image:
        preprocess = replace(preprocess, fit="letterbox")
    return Spec(preprocess, Labels(train.classes), task.output_task)


def choose_preprocess(model: Model, train: Dataset, pretrained: bool) -> Preprocess:
    """Keep the preprocessing of the weights; from scratch, use an array dataset's own mean and deviation."""
    own = replace(model.spec.preprocess, image_size=model.config.image_size)
    if isinstance(train, ArrayDataset):
        own = replace(own, crop_ratio=1.0)
        if not pretrained and train.num_channels == own.num_channels:
            mean, std = channel_statistics(train)
            own = replace(own, mean=mean, std=std)
    return own


def channel_statistics(data: ArrayDataset, number: int = 2000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation per channel on a scale of 0 to 1, over at most ``number`` images."""
    indices = np.linspace(0, len(data) - 1, min(number, len(data))).astype(np.int64)
    pixels = data.pixels(indices).astype(np.float64) / 255
    mean, std = pixels.mean(axis=(0, 2, 3)), pixels.std(axis=(0, 2, 3))
    return tuple(round(float(v), 4) for v in mean), tuple(round(max(float(v), 0.01), 4) for v in std)


def cache_in_memory(data: Dataset, memory: str) -> tuple[Dataset, list[str]]:
    """Decode the images into memory if configured and, for "auto", if they fit; return notes for the user."""
    if not isinstance(data, FileDataset) or memory == "no" or (isinstance(data, AdaptedDataset) and data.random_images):
        return data, []
    needed = estimate_memory(data)
    if memory == "auto" and needed > MEMORY_LIMIT:
        return data, []
    decoded, broken = decode_into_memory(data)
    notes = [f"{len(decoded):,} images are cached in memory ({needed / 1e6:,.0f} MB)"]
    return decoded, notes + ([unreadable_message(broken, len(data))] if broken else [])
