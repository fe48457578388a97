"""Meters: metrics accumulated over batches and merged over processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.samples import Batch

Unit = Literal["share", "nats", "pixels"]


class Metric(float):
    """A float with a unit and a direction (higher or lower is better)."""

    unit: Unit
    higher_is_better: bool

    def __new__(cls, value: float, unit: Unit = "share", higher_is_better: bool = True) -> Self:
        metric = super().__new__(cls, value)
        metric.unit, metric.higher_is_better = unit, higher_is_better
        return metric

    @property
    def goodness(self) -> float:
        """The value, negated if lower is better; the best model is selected by its maximum."""
        return float(self) if self.higher_is_better else -float(self)

    def __str__(self) -> str:
        return f"{float(self):.1%}" if self.unit == "share" else f"{float(self):.3f}"


def loss_metric(value: float) -> Metric:
    return Metric(value, "nats", higher_is_better=False)


class Meter(ABC):
    """Accumulates what a dataset's metrics need; each image is added once, in any order, on any process."""

    @abstractmethod
    def add(self, outputs: dict[str, Tensor], batch: Batch, indices: NDArray[np.int64]) -> None:
        """Add a batch; ``indices`` are the positions of its images in the dataset."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add the content of another process's meter."""

    @abstractmethod
    def result(self) -> dict[str, Metric]:
        """Compute the metrics; the first one selects the best model."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images added."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return arrays to be saved in ``predictions.npz`` for the run's report."""
        return {}


class RowMeter(Meter):
    """A meter that stores the scores and targets of every image."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes
        self.rows: list[tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]] = []

    @abstractmethod
    def scores(self, outputs: dict[str, Tensor]) -> Tensor:
        """Extract one row of scores per image."""

    def add(self, outputs: dict[str, Tensor], batch: Batch, indices: NDArray[np.int64]) -> None:
        targets: Any = batch.targets
        self.rows.append((self.scores(outputs).float().cpu().numpy(), targets.values.cpu().numpy(), indices))

    def merge(self, other: RowMeter) -> None:
        self.rows += other.rows

    def __len__(self) -> int:
        return sum(len(indices) for _, _, indices in self.rows)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return logits, targets and dataset indices, sorted by index."""
        if not self.rows:
            empty = np.zeros((0, len(self.classes)), np.float32)
            return {"logits": empty, "targets": empty, "indices": np.zeros(0, np.int64)}
        logits, targets, indices = (np.concatenate(column) for column in zip(*self.rows, strict=True))
        order = np.argsort(indices, kind="stable")
        return {"logits": logits[order], "targets": targets[order], "indices": indices[order]}
