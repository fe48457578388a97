"""Metrics of classification into so many classes that the scores of all images would not fit in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.models.base import mean_logits
from vitreous.samples import Batch
from vitreous.tasks import metrics
from vitreous.tasks.meter import Meter, Metric, loss_metric

#: With more classes, the scores of 50,000 images take a gigabyte and a confusion matrix two hundred megabytes.
MANY_CLASSES = 5_000
TOP = 5


class ManyClassMeter(Meter):
    """The metrics of ``ClassMeter`` from each image's label, its rank and loss, and the five best classes.

    The loss is averaged over images, the accuracies are exact; memory does not depend on the number of classes.
    """

    def __init__(self) -> None:
        self.columns: dict[str, NDArray[Any]] = {}
        self.count = 0

    def add(self, outputs: dict[str, Tensor], batch: Batch, indices: NDArray[np.int64]) -> None:
        targets: Any = batch.targets
        logits, values = mean_logits(outputs).float().cpu(), targets.values.cpu()
        labels = values.argmax(1)
        own = logits.gather(1, labels[:, None])
        earlier = torch.arange(logits.shape[1]) < labels[:, None]
        log_probabilities = logits.log_softmax(1)
        best, predicted = log_probabilities.topk(TOP, dim=1)
        row = {
            "labels": labels,
            "ranks": ((logits > own) | ((logits == own) & earlier)).sum(1),
            "losses": -(log_probabilities * values).sum(1),
            "predicted": predicted,
            "probabilities": best.exp(),
        }
        self.append({"indices": indices} | {name: column.numpy() for name, column in row.items()})

    def append(self, rows: dict[str, NDArray[Any]]) -> None:
        """Copy rows into columns that double when they are full.

        Small arrays kept per batch would lie between the large ones that each batch frees, and fragment the heap.
        """
        end = self.count + len(rows["indices"])
        for name, values in rows.items():
            column = self.columns.get(name)
            if column is None or end > len(column):
                grown = np.empty((2 * end, *values.shape[1:]), values.dtype)
                if column is not None:
                    grown[: self.count] = column[: self.count]
                self.columns[name] = grown
            self.columns[name][self.count : end] = values
        self.count = end

    def merge(self, other: ManyClassMeter) -> None:
        if other.count:
            self.append({name: column[: other.count] for name, column in other.columns.items()})

    def __len__(self) -> int:
        return self.count

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return labels, their ranks, losses, and the best classes with their probabilities, sorted by index."""
        columns = {name: column[: self.count] for name, column in self.columns.items()}
        order = np.argsort(columns["indices"], kind="stable") if columns else slice(0)
        return {name: column[order] for name, column in columns.items()}

    def result(self) -> dict[str, Metric]:
        found = self.arrays()
        metrics.check_not_nan(found["losses"])
        correct, confidence = found["predicted"][:, 0] == found["labels"], found["probabilities"][:, 0]
        return {
            "accuracy": Metric(float((found["ranks"] < 1).mean())),
            "top5": Metric(float((found["ranks"] < TOP).mean())),
            "loss": loss_metric(float(found["losses"].mean(dtype=np.float64))),
            "calibration_error": Metric(metrics.bin_confidence(confidence, correct).error, higher_is_better=False),
        }
