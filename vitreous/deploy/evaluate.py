"""Evaluate a model on labeled images: metrics, confusion matrix and throughput."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.adapter import adapt
from vitreous.data.base import Dataset
from vitreous.data.foreign import is_foreign, require_dataset
from vitreous.data.loader import EvaluationLoader
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits
from vitreous.deploy.accelerate import accelerate
from vitreous.deploy.engine import EngineMode, resolve_engine
from vitreous.memory import retain_freed_memory
from vitreous.models.base import Model
from vitreous.models.engine import Engine
from vitreous.options import check_callable, checked_int
from vitreous.samples import Classes, Inputs, MultiLabels, Targets
from vitreous.spec import Preprocess, Size, pair
from vitreous.tasks.base import Task, find_decoder
from vitreous.tasks.meter import Meter, Metric
from vitreous.tasks.metrics import PerClass, confusion, per_class, per_class_of
from vitreous.tasks.multilabel import MultiLabel
from vitreous.train.measure import measure
from vitreous.train.parallel import World
from vitreous.weights.published import are_imagenet_labels, imagenet_ids

WORDNET_ID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Evaluation:
    """Result of :func:`evaluate`: metrics of a model on a dataset at one resolution.

    ``unreadable`` maps files that could not be read to the reason; ``meter`` holds the accumulated data.
    """

    metrics: dict[str, Metric]
    classes: tuple[str, ...]
    image_size: Size
    images_per_second: float
    unreadable: dict[str, str]
    meter: Meter = field(repr=False)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The data behind the metrics.

        Logits and targets; for more than 5,000 classes the labels and the five best classes; for masks the confusion
        matrix.
        """
        return self.meter.arrays()

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """Confusion matrix (true class, predicted class), in images, or pixels for segmentation."""
        arrays = self.arrays
        if "confusion" in arrays:
            return arrays["confusion"]
        if "logits" not in arrays:
            count = len(self.classes)
            raise ValueError(
                f"a confusion matrix of {count:,} classes would take {count**2 * 8 / 1e9:.0f} GB; use "
                "evaluation.per_class, or evaluation.arrays with 'labels' and 'predicted'"
            )
        return confusion(arrays["logits"], arrays["targets"].argmax(1))

    @property
    def per_class(self) -> PerClass:
        """Precision, recall, F1 and support of each class."""
        arrays = self.arrays
        if "predicted" in arrays:
            return per_class_of(arrays["labels"], arrays["predicted"][:, 0], len(self.classes))
        return per_class(self.confusion)

    def confused(self, index: int) -> NDArray[np.int64]:
        """Count how often images (or pixels) of a class were predicted as each class."""
        arrays = self.arrays
        if "predicted" in arrays:
            of_class = arrays["predicted"][arrays["labels"] == index, 0]
            return np.bincount(of_class, minlength=len(self.classes))
        return self.confusion[index]


@retain_freed_memory()
def evaluate(
    model: Engine | str | os.PathLike[str],
    data: Any,
    *,
    split: str = "auto",
    image_size: int | Size | None = None,
    task: Task | str | None = None,
    engine: EngineMode = "eager",
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate a model, an accelerated model or a weights file on labeled data.

    >>> vt.evaluate("cat.safetensors", "photos/").metrics["accuracy"]

    Args:
        model: The model or file. Its classes are matched with those of the data by name, if the model has names.
        data: Anything that :func:`open_data` opens, a ``Dataset``, ``Splits``, or a dataset with a length and items
            (image, target), such as torchvision's, without transforms. Pass a ``DataLoader``'s dataset instead of the
            loader, whose images are resized and batched already.
        split: "train", "valid" or "test"; "auto" takes the test split of the data, else its validation split, else all.
        image_size: Resolution in pixels; by default the model's own.
        task: What to measure; by default the task that the model was trained for.
        engine: "auto" accelerates a model on a CPU first.
        batch_size: Number of images per forward pass.
        progress: Called with the number of images done and the total.

    Returns:
        The metrics, with the data behind them and the throughput.
    """
    if engine not in get_args(EngineMode):
        raise ValueError(f"engine must be one of {', '.join(get_args(EngineMode))}, got {engine!r}")
    runner = resolve_engine(model)
    net = runner.model.eval()
    task = find_decoder(net.spec) if task is None else Task.given("task", task)
    check_callable("progress", progress)
    dataset = open_labeled(data, split, net, targets_of(task))
    if task.name == "classify" and dataset.target is MultiLabels:
        task = MultiLabel()  # files of format version 1 do not record the multi-label task
    columns, preprocess = match_classes(net, dataset), preprocess_at(net, image_size)
    device = next(net.parameters()).device
    loader = EvaluationLoader(dataset, preprocess, batch_size=checked_int("batch_size", batch_size))
    if engine == "auto" and runner is net and device.type == "cpu":
        runner = accelerate(net, next(iter(loader))[1].images)
    objective = task.start(net.spec, str(device))

    def forward(inputs: Inputs) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return task.select(runner.outputs(inputs), columns)

    world, meter = World(device=str(device)), objective.meter(dataset.classes)
    found = measure(forward, loader, meter, world=world, select=objective.inputs, progress=progress)
    speed = len(found.meter) / found.seconds
    metrics, size = found.meter.result(), preprocess.image_size
    return Evaluation(metrics, dataset.classes, size, speed, found.unreadable, found.meter)


def open_labeled(data: Any, split: str, net: Model, target: type[Targets] | None) -> Dataset:
    """Open the data; integer labels of a dataset without class names are taken as the model's classes."""
    if isinstance(data, str | os.PathLike):
        return open_split(os.fspath(data), split, target=target)
    if isinstance(data, Splits):
        return choose_split(data, split)
    if split != "auto":
        raise ValueError(f"split={split!r} needs data given by path or as Splits; leave it out")
    if is_foreign(data):
        return adapt(data, target=target, classes=net.spec.labels.names, num_classes=net.config.num_classes)[0]
    return require_dataset(data)


def targets_of(task: Task) -> type[Targets] | None:
    """Return the kind of targets to open; None for class labels, where the data determines single or multi-label."""
    return None if task.targets in (Classes, MultiLabels) else task.targets


def open_split(
    source: str, split: str, image_size: Size | None = None, *, target: type[Targets] | None = None
) -> Dataset:
    """Open one split; without an explicit validation split, 10 % is held out, except with "auto"."""
    held_out = 0.0 if split == "auto" else 0.1
    return choose_split(open_data(source, target=target, valid_share=held_out, image_size=image_size), split)


def choose_split(splits: Splits, split: str) -> Dataset:
    parts = {"train": splits.train, "valid": splits.valid, "test": splits.test}
    if split == "auto":
        return next(part for part in (splits.test, splits.valid, splits.train) if part is not None)
    if split not in parts:
        raise ValueError(f"split must be train, valid or test, got {split!r}")
    if (part := parts[split]) is None:
        available = ", ".join(name for name, value in parts.items() if value is not None)
        raise ValueError(f"the data has no {split} split; it has {available}")
    return part


def match_classes(model: Model, data: Dataset) -> list[int]:
    """Return the model's output index for each class of the data, matched by name or by ImageNet's WordNet id."""
    names = list(model.spec.labels.names)
    if not names:
        if model.config.num_classes != len(data.classes):
            raise ValueError(
                f"the model has {model.config.num_classes} unnamed classes, the data {len(data.classes)}; "
                "train on this data, or name the model's classes with model.name_classes"
            )
        return list(range(len(data.classes)))
    columns = {name: column for column, name in reversed(list(enumerate(names)))}
    if any(WORDNET_ID.fullmatch(name) for name in data.classes) and are_imagenet_labels(model.spec.labels):
        columns = {name: column for column, name in enumerate(imagenet_ids())} | columns
    unknown = [name for name in data.classes if name not in columns]
    if unknown:
        shown: Sequence[str] = unknown[:5]
        raise ValueError(
            f"{len(unknown)} of the data's {len(data.classes)} classes are unknown to the model: {', '.join(shown)}; "
            f"its {len(names)} classes are {', '.join(names[:5])} …"
        )
    return [columns[name] for name in data.classes]


def preprocess_at(model: Model, image_size: int | Size | None) -> Preprocess:
    own = model.spec.preprocess
    return own if image_size is None else replace(own, image_size=pair(image_size, "image_size"))
