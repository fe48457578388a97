"""One class per image.

    loss = −Σₖ tₖ · log softmax(z)ₖ,     t ← (1 − s) · t + s / K

for a target t that is a share of each of K classes (MixUp and CutMix mix them) and label smoothing s ("Rethinking the
Inception Architecture", Szegedy et al. 2015, arXiv 1512.00567); the mean over the batch, and over heads where a model
has several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.models.base import combine
from vitreous.options import Rate
from vitreous.samples import Batch, Classes, Targets
from vitreous.spec import Spec
from vitreous.tasks import metrics
from vitreous.tasks.base import Objective, Outputs, Task
from vitreous.tasks.meter import Meter, Metric, RowMeter, loss_metric
from vitreous.tasks.predictions import ClassScores, Undoes


@dataclass(frozen=True, kw_only=True)
class Classify(Task):
    """Each image belongs to one class."""

    name: ClassVar[str] = "classify"
    targets: ClassVar[type[Targets]] = Classes
    meaning: ClassVar[str] = "classify"
    smoothing: Rate = 0.0  # share of every target that is spread evenly over all classes

    def start(self, spec: Spec, device: str) -> Objective:
        return LabelLoss(self.smoothing)

    @classmethod
    def decode(cls, outputs: Outputs, spec: Spec, views: Sequence[Undoes] = (), *, top: int = 5) -> list[ClassScores]:
        logits = combine(outputs).float().cpu()
        probabilities, indices = logits.softmax(-1).topk(min(top, logits.shape[-1]))
        return [
            ClassScores(tuple(spec.labels[index] for index in row), tuple(shares), tuple(row))
            for row, shares in zip(indices.tolist(), probabilities.tolist(), strict=True)
        ]


class LabelLoss(Objective):
    """Cross-entropy with labels: the mean over all heads."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        return {"loss": head_losses(outputs, values_of(batch), smoothing=self.smoothing)}

    def monitor(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": (combine(outputs).argmax(1) == values_of(batch).argmax(1)).float().mean()}

    def meter(self, classes: tuple[str, ...]) -> Meter:
        return ClassMeter(classes)


class ClassMeter(RowMeter):
    """Accuracy, top-5 accuracy where there are more classes, cross-entropy without smoothing, calibration error."""

    def scores(self, outputs: dict[str, Tensor]) -> Tensor:
        return combine(outputs)

    def result(self) -> dict[str, Metric]:
        arrays = self.arrays()
        return class_measures(torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["targets"]))


def values_of(batch: Batch) -> Float[Tensor, "b k"]:
    """The class vectors of a batch."""
    if not isinstance(batch.targets, Classes):
        raise ValueError(f"this task learns from class labels, the data has {batch.targets.words}")
    return batch.targets.values


def head_losses(heads: dict[str, Tensor], targets: Float[Tensor, "b k"], *, smoothing: float) -> Float[Tensor, ""]:
    """The mean over all heads."""
    losses = [cross_entropy(logits, targets, smoothing=smoothing) for logits in heads.values()]
    return sum(losses[1:], losses[0]) / len(losses)


def cross_entropy(
    logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"], *, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Of targets that are shares, in single precision at least."""
    check_targets(logits, targets)
    return F.cross_entropy(logits.float(), targets.float(), label_smoothing=smoothing)


def class_measures(logits: Float[Tensor, "n k"], targets: Float[Tensor, "n k"]) -> dict[str, Metric]:
    check_targets(logits, targets)
    scores, labels = logits.float().cpu().numpy(), targets.argmax(dim=1).cpu().numpy()
    measures: dict[str, Metric] = {"accuracy": Metric(metrics.accuracy(scores, labels))}
    if scores.shape[1] > 5:
        measures["top5"] = Metric(metrics.top_k(scores, labels, k=5))
    measures["loss"] = loss_metric(float(cross_entropy(logits, targets)))
    error: Any = metrics.calibration_error(metrics.softmax(scores), labels)
    measures["calibration_error"] = Metric(error, higher_is_better=False)
    return measures


def check_targets(logits: Tensor, targets: Tensor) -> None:
    if logits.shape != targets.shape:
        raise ValueError(
            f"the model answers with shape {tuple(logits.shape)} (images, classes), the targets have "
            f"{tuple(targets.shape)}; build it with num_classes={targets.shape[-1]}"
        )
