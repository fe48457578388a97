"""Multi-label classification: any number of labels per image, some of them unknown.

    loss = −1/(B·K) Σ [p · t · log σ(z) + (1 − t) · log(1 − σ(z))]

over the known labels of B images × K classes, with a weight p of positives. Dividing by B·K rather than by the number
of known labels makes the loss of a batch the mean of its micro-batches' losses, whatever their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.models.base import mean_logits
from vitreous.options import Positive
from vitreous.samples import Batch, MultiLabels, Targets
from vitreous.spec import Spec
from vitreous.tasks import metrics
from vitreous.tasks.base import Objective, Outputs, Task
from vitreous.tasks.classify import check_target_shape, class_targets
from vitreous.tasks.meter import Meter, Metric, RowMeter, loss_metric
from vitreous.tasks.predictions import InverseView, LabelScores


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Task):
    """Multi-label classification with binary cross-entropy; targets are 1, 0, or NaN (unknown)."""

    name: ClassVar[str] = "multilabel"
    targets: ClassVar[type[Targets]] = MultiLabels
    output_task: ClassVar[str] = "multilabel"
    positive_weight: Positive = 1.0  # weight of positive labels relative to negative ones

    def start(self, spec: Spec, device: str) -> Objective:
        return MultiLabelObjective(self.positive_weight)

    @classmethod
    def decode(
        cls, outputs: Outputs, spec: Spec, views: Sequence[InverseView] = (), *, top: int = 5
    ) -> list[LabelScores]:
        logits = mean_logits(outputs).float().cpu()
        probabilities, indices = logits.sigmoid().topk(min(top, logits.shape[-1]))
        return [
            LabelScores(tuple(spec.labels[index] for index in row), tuple(shares), tuple(row))
            for row, shares in zip(indices.tolist(), probabilities.tolist(), strict=True)
        ]


class MultiLabelObjective(Objective):
    """Binary cross-entropy over the known labels, averaged over all heads."""

    def __init__(self, positive_weight: float) -> None:
        self.positive_weight = positive_weight

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        targets = class_targets(batch)
        losses = [masked_cross_entropy(z, targets, positive_weight=self.positive_weight) for z in outputs.values()]
        return {"loss": sum(losses[1:], losses[0]) / len(losses)}

    def meter(self, classes: tuple[str, ...]) -> Meter:
        return LabelMeter(classes)


class LabelMeter(RowMeter):
    """AUROC and average precision, averaged over the classes for which they are defined; NaN if there are none.

    AUROC is undefined for a class without positives or without negatives, average precision without positives.
    """

    def scores(self, outputs: dict[str, Tensor]) -> Tensor:
        return mean_logits(outputs)

    def result(self) -> dict[str, Metric]:
        arrays = self.arrays()
        logits, targets = arrays["logits"], arrays["targets"]
        check_target_shape(torch.from_numpy(logits), torch.from_numpy(targets))
        columns = list(zip(logits.T, targets.T, strict=True))
        areas = [metrics.auroc(scores, truth) for scores, truth in columns]
        precisions = [metrics.average_precision(scores, truth) for scores, truth in columns]
        return {
            "auroc": Metric(nan_mean(areas)),
            "average_precision": Metric(nan_mean(precisions)),
            "loss": loss_metric(float(masked_cross_entropy(torch.from_numpy(logits), torch.from_numpy(targets)))),
            **{
                f"auroc/{name}": Metric(area)
                for name, area in zip(self.classes, areas, strict=True)
                if not math.isnan(area)
            },
        }


def masked_cross_entropy(
    logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"], *, positive_weight: float = 1.0
) -> Float[Tensor, ""]:
    """Sum the binary cross-entropy over the known targets and divide by the number of all targets."""
    check_target_shape(logits, targets)
    known, targets = ~targets.isnan(), targets.nan_to_num().float()
    weight = torch.tensor(positive_weight, device=logits.device)
    entropies = F.binary_cross_entropy_with_logits(logits.float(), targets, pos_weight=weight, reduction="none")
    return (entropies * known).sum() / targets.numel()


def nan_mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan
