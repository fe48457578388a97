"""Classification: one class per image.

    loss = −Σₖ tₖ · log softmax(z)ₖ,     t ← (1 − s) · t + s / K

with soft targets t over K classes (MixUp and CutMix mix them) and label smoothing s ("Rethinking the Inception
Architecture", Szegedy et al. 2015, arXiv 1512.00567), averaged over the batch and over the model's heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.models.base import mean_logits
from vitreous.options import Rate
from vitreous.samples import Batch, Classes, Targets
from vitreous.spec import Spec
from vitreous.tasks import metrics
from vitreous.tasks.base import Objective, Outputs, Task
from vitreous.tasks.many_classes import MANY_CLASSES, ManyClassMeter
from vitreous.tasks.meter import Meter, Metric, RowMeter, loss_metric
from vitreous.tasks.predictions import ClassScores, InverseView


@dataclass(frozen=True, kw_only=True)
class Classify(Task):
    """Single-label classification with cross-entropy.

    >>> vt.train("vit_tiny_16", "photos/", task=Classify(smoothing=0.1))
    """

    name: ClassVar[str] = "classify"
    targets: ClassVar[type[Targets]] = Classes
    output_task: ClassVar[str] = "classify"
    smoothing: Rate = 0.0  # label smoothing

    def start(self, spec: Spec, device: str) -> Objective:
        return ClassifyObjective(self.smoothing)

    @classmethod
    def decode(
        cls, outputs: Outputs, spec: Spec, views: Sequence[InverseView] = (), *, top: int = 5
    ) -> list[ClassScores]:
        logits = mean_logits(outputs).float().cpu()
        probabilities, indices = logits.softmax(-1).topk(min(top, logits.shape[-1]))
        return [
            ClassScores(tuple(spec.labels[index] for index in row), tuple(shares), tuple(row))
            for row, shares in zip(indices.tolist(), probabilities.tolist(), strict=True)
        ]


class ClassifyObjective(Objective):
    """Cross-entropy with the labels, averaged over all heads."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        return {"loss": mean_head_loss(outputs, class_targets(batch), smoothing=self.smoothing)}

    def monitor(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": (mean_logits(outputs).argmax(1) == class_targets(batch).argmax(1)).float().mean()}

    def meter(self, classes: tuple[str, ...]) -> Meter:
        return ManyClassMeter() if len(classes) > MANY_CLASSES else ClassMeter(classes)


class ClassMeter(RowMeter):
    """Accuracy, top-5 accuracy (with more than 5 classes), cross-entropy without smoothing, calibration error."""

    def scores(self, outputs: dict[str, Tensor]) -> Tensor:
        return mean_logits(outputs)

    def result(self) -> dict[str, Metric]:
        arrays = self.arrays()
        return class_metrics(torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["targets"]))


def class_targets(batch: Batch) -> Float[Tensor, "b k"]:
    """Return the class targets of a batch."""
    if not isinstance(batch.targets, Classes):
        raise ValueError(f"the task needs class labels, the data has {batch.targets.description}")
    return batch.targets.values


def mean_head_loss(heads: dict[str, Tensor], targets: Float[Tensor, "b k"], *, smoothing: float) -> Float[Tensor, ""]:
    """Average the cross-entropy over all heads."""
    losses = [cross_entropy(logits, targets, smoothing=smoothing) for logits in heads.values()]
    return sum(losses[1:], losses[0]) / len(losses)


def cross_entropy(
    logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"], *, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Compute the cross-entropy with soft targets, in float32."""
    check_target_shape(logits, targets)
    return F.cross_entropy(logits.float(), targets.float(), label_smoothing=smoothing)


def class_metrics(logits: Float[Tensor, "n k"], targets: Float[Tensor, "n k"]) -> dict[str, Metric]:
    check_target_shape(logits, targets)
    scores, labels = logits.float().cpu().numpy(), targets.argmax(dim=1).cpu().numpy()
    measures: dict[str, Metric] = {"accuracy": Metric(metrics.accuracy(scores, labels))}
    if scores.shape[1] > 5:
        measures["top5"] = Metric(metrics.top_k(scores, labels, k=5))
    measures["loss"] = loss_metric(float(cross_entropy(logits, targets)))
    error: Any = metrics.calibration_error(metrics.softmax(scores), labels)
    measures["calibration_error"] = Metric(error, higher_is_better=False)
    return measures


def check_target_shape(logits: Tensor, targets: Tensor) -> None:
    if logits.shape != targets.shape:
        raise ValueError(
            f"the logits have shape {tuple(logits.shape)} (images, classes), the targets {tuple(targets.shape)}; "
            f"build the model with num_classes={targets.shape[-1]}"
        )
