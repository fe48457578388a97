"""How good a model is on labeled images, and how fast."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.adapter import adapt
from vitreous.data.base import Dataset
from vitreous.data.foreign import is_foreign, need_dataset
from vitreous.data.loader import EvaluationLoader
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits
from vitreous.deploy.accelerate import accelerate
from vitreous.deploy.engine import Wanted, find_engine
from vitreous.memory import memory_kept
from vitreous.models.base import Model
from vitreous.models.engine import Engine
from vitreous.options import check_callable, checked_int
from vitreous.samples import Classes, Inputs, MultiLabels, Targets
from vitreous.spec import Preprocess, Size, pair
from vitreous.tasks.base import Task, decoder_of
from vitreous.tasks.meter import Meter, Metric
from vitreous.tasks.metrics import PerClass, confusion, per_class
from vitreous.tasks.multilabel import MultiLabel
from vitreous.train.measure import measure
from vitreous.train.parallel import World
from vitreous.weights.published import are_imagenets, imagenet_ids

WORDNET_ID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one model on one set at one resolution; the meter they were read from is kept."""

    metrics: dict[str, Metric]
    classes: tuple[str, ...]
    image_size: Size
    images_per_second: float
    unreadable: dict[str, str]
    meter: Meter = field(repr=False)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the metrics were computed from: logits and targets, or a confusion matrix."""
        return self.meter.arrays()

    @property
    def confusion(self) -> NDArray[np.int64]:
        """(true class, predicted class) → images, or pixels."""
        arrays = self.arrays
        if "confusion" in arrays:
            return arrays["confusion"]
        return confusion(arrays["logits"], arrays["targets"].argmax(1))

    @property
    def per_class(self) -> PerClass:
        """Precision, recall, F1 and number of images of each class."""
        return per_class(self.confusion)


@memory_kept()
def evaluate(
    model: Engine | str | os.PathLike[str],
    data: Any,
    *,
    split: str = "auto",
    image_size: int | Size | None = None,
    task: Task | str | None = None,
    engine: Wanted = "eager",
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure a model, an accelerated one or a weights file on data with targets.

    ``data`` is whatever :func:`open_data` opens, a ``Dataset``, ``Splits``, or any dataset with a length whose items
    are (image, target), such as torchvision's: images as they are, prepared by nobody. A ``DataLoader`` has prepared
    and batched them already, so that nothing could be said about another size or an image that cannot be read: give
    its dataset.

    ``split`` is train, valid or test; "auto" takes what the data itself sets apart as test, else as validation, else
    all there is. Classes are matched by name where the model knows them. ``task`` says what is measured; by itself what
    the model was trained for. With ``engine="auto"`` a model on a CPU is accelerated first.
    """
    if engine not in get_args(Wanted):
        raise ValueError(f"engine must be one of {', '.join(get_args(Wanted))}, got {engine!r}")
    runner = find_engine(model)
    net = runner.model.eval()
    task = decoder_of(net.spec) if task is None else Task.given("task", task)
    check_callable("progress", progress)
    dataset = open_labeled(data, split, net, targets_of(task))
    if task.name == "classify" and dataset.target is MultiLabels:
        task = MultiLabel()  # files of format 1 do not say that they were trained for several labels
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
    """The data to measure on; numbers in data that names no classes are those of the model."""
    if isinstance(data, str | os.PathLike):
        return open_split(os.fspath(data), split, target=target)
    if isinstance(data, Splits):
        return choose_split(data, split)
    if split != "auto":
        raise ValueError(f"split {split!r} chooses a part of data that is given by path or as Splits; leave it out")
    if is_foreign(data):
        return adapt(data, target=target, classes=net.spec.labels.names, count=net.config.num_classes)[0]
    return need_dataset(data)


def targets_of(task: Task) -> type[Targets] | None:
    """The kind of targets to open; data with class labels says itself whether an image has one or several."""
    return None if task.targets in (Classes, MultiLabels) else task.targets


def open_split(
    source: str, split: str, image_size: Size | None = None, *, target: type[Targets] | None = None
) -> Dataset:
    """A part of some data; only when validation is asked for is it held out where the data has none."""
    held_out = 0.0 if split == "auto" else 0.1
    return choose_split(open_data(source, target=target, valid_share=held_out, image_size=image_size), split)


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


def match_classes(model: Model, data: Dataset) -> list[int]:
    """The model's column for each class of the data, by its name, or for ImageNet's classes by their WordNet ids."""
    names = list(model.spec.labels.names)
    if not names:
        if model.config.num_classes != len(data.classes):
            raise ValueError(
                f"the model has {model.config.num_classes} unnamed classes, the data {len(data.classes)}; "
                "train on this data, or name the model's classes with name_classes"
            )
        return list(range(len(data.classes)))
    columns = {name: column for column, name in reversed(list(enumerate(names)))}
    if any(WORDNET_ID.fullmatch(name) for name in data.classes) and are_imagenets(model.spec.labels):
        columns = {name: column for column, name in enumerate(imagenet_ids())} | columns
    unknown = [name for name in data.classes if name not in columns]
    if unknown:
        shown: Sequence[str] = unknown[:5]
        raise ValueError(
            f"{len(unknown)} of the data's {len(data.classes)} classes are unknown to the model: {', '.join(shown)}; "
            f"it knows {len(names)}: {', '.join(names[:5])} …"
        )
    return [columns[name] for name in data.classes]


def preprocess_at(model: Model, image_size: int | Size | None) -> Preprocess:
    own = model.spec.preprocess
    return own if image_size is None else replace(own, image_size=pair(image_size, "image_size"))
