"""How good a model is on labelled pictures, and how fast."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.base import Dataset
from vitreous.data.loader import EvaluationLoader
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits
from vitreous.memory import memory_kept
from vitreous.models.base import Backbone
from vitreous.spec import Preprocess, Size, pair
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.metrics import PerClass, confusion, per_class
from vitreous.tasks.multilabel import MultiLabel
from vitreous.weights.load import load


@dataclass(frozen=True)
class Evaluation:
    """Measures of one model on one set at one resolution; the logits they come from are kept."""

    metrics: dict[str, float]
    classes: tuple[str, ...]
    image_size: Size
    images_per_second: float
    unreadable: dict[str, str]
    logits: NDArray[np.float32] = field(repr=False)
    targets: NDArray[np.float32] = field(repr=False)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """(true class, answered class) → pictures."""
        return confusion(self.logits, self.targets.argmax(1))

    @property
    def per_class(self) -> PerClass:
        """Precision, recall, F1 and number of pictures of each class."""
        return per_class(self.confusion)


@memory_kept()
def evaluate(
    model: Backbone | str | os.PathLike[str],
    data: Dataset | str | os.PathLike[str],
    *,
    split: str = "auto",
    image_size: int | Size | None = None,
    task: Task | None = None,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure a model, or a weights file, on a dataset or whatever :func:`open_data` opens.

    ``split`` is train, valid or test; "auto" takes what the data itself sets apart as test, else as validation, else
    all there is. Classes are matched by name
    where the model knows them.
    """
    model = model if isinstance(model, Backbone) else load(model)
    model.eval()
    dataset = data if isinstance(data, Dataset) else open_split(os.fspath(data), split)
    columns = match_classes(model, dataset)
    preprocess = preprocess_at(model, image_size)
    device = next(model.parameters()).device
    loader = EvaluationLoader(dataset, preprocess, batch_size=batch_size)
    rows: list[tuple[NDArray[Any], NDArray[Any]]] = []
    seconds, done = 0.0, 0
    for indices, batch in loader:
        begin = time.perf_counter()
        with torch.inference_mode():
            logits = model(batch.images.to(device)).float().cpu().numpy()
        seconds += time.perf_counter() - begin
        rows.append((logits[:, columns], batch.targets.numpy()))
        done += len(indices)
        if progress is not None:
            progress(done, len(dataset))
    if not rows:
        raise ValueError("none of the pictures could be read, so there is nothing to measure")
    logits, targets = (np.concatenate(column) for column in zip(*rows, strict=True))
    task = task or (MultiLabel() if dataset.multi_label else Classify())
    measured = task.measure(torch.from_numpy(logits), torch.from_numpy(targets), dataset.classes)
    size, speed = preprocess.image_size, done / seconds
    return Evaluation(measured, dataset.classes, size, speed, loader.unreadable, logits, targets)


def open_split(source: str, split: str, image_size: Size | None = None) -> Dataset:
    """A part of some data; only when validation is asked for is it held out where the data has none."""
    held_out = 0.0 if split == "auto" else 0.1
    return choose_split(open_data(source, valid_share=held_out, image_size=image_size), split)


def choose_split(splits: Splits, split: str) -> Dataset:
    parts = {"train": splits.train, "valid": splits.valid, "test": splits.test}
    if split == "auto":
        return next(part for part in (splits.test, splits.valid, splits.train) if part is not None)
    if split not in parts:
        raise ValueError(f"split must be train, valid or test, got {split!r}")
    if (part := parts[split]) is None:
        there = ", ".join(name for name, value in parts.items() if value is not None)
        raise ValueError(f"the data has no {split} split; it has {there}")
    return part


def match_classes(model: Backbone, data: Dataset) -> list[int]:
    """The model's column for each class of the data."""
    names = list(model.spec.labels.names)
    if not names:
        if model.config.num_classes != len(data.classes):
            raise ValueError(
                f"the model has {model.config.num_classes} unnamed classes, the data {len(data.classes)}; "
                "train on this data, or name the model's classes with name_classes"
            )
        return list(range(len(data.classes)))
    unknown = [name for name in data.classes if name not in names]
    if unknown:
        shown: Sequence[str] = unknown[:5]
        raise ValueError(
            f"{len(unknown)} of the data's {len(data.classes)} classes are unknown to the model: {', '.join(shown)}; "
            f"it knows {len(names)}: {', '.join(names[:5])} …"
        )
    return [names.index(name) for name in data.classes]


def preprocess_at(model: Backbone, image_size: int | Size | None) -> Preprocess:
    own = model.spec.preprocess
    return own if image_size is None else replace(own, image_size=pair(image_size, "image_size"))
