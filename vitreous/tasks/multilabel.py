"""Any number of labels per image, some of them unknown.

    loss = −1/(B·K) Σ [p · t · log σ(z) + (1 − t) · log(1 − σ(z))]

over the known among B images × K classes, with a weight p of positives. Dividing by all B·K rather than by the
known makes the loss of a batch the mean of its parts' losses, so that it does not depend on how many processes share
the batch.
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

from vitreous.models.base import combine
from vitreous.options import Positive
from vitreous.samples import Batch, MultiLabels, Targets
from vitreous.spec import Spec
from vitreous.tasks import metrics
from vitreous.tasks.base import Objective, Outputs, Task
from vitreous.tasks.classify import check_targets, values_of
from vitreous.tasks.meter import Meter, Metric, RowMeter, loss_metric
from vitreous.tasks.predictions import LabelScores, Undoes


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Task):
    """Each image has any number of labels; targets are 1, 0, and NaN where a label is unknown."""

    name: ClassVar[str] = "multilabel"
    targets: ClassVar[type[Targets]] = MultiLabels
    meaning: ClassVar[str] = "multilabel"
    positive_weight: Positive = 1.0  # how much a label that is there counts against one that is not

    def start(self, spec: Spec, device: str) -> Objective:
        return LabelsLoss(self.positive_weight)

    @classmethod
    def decode(cls, outputs: Outputs, spec: Spec, views: Sequence[Undoes] = (), *, top: int = 5) -> list[LabelScores]:
        logits = combine(outputs).float().cpu()
        probabilities, indices = logits.sigmoid().topk(min(top, logits.shape[-1]))
        return [
            LabelScores(tuple(spec.labels[index] for index in row), tuple(shares), tuple(row))
            for row, shares in zip(indices.tolist(), probabilities.tolist(), strict=True)
        ]


class LabelsLoss(Objective):
    """Binary cross-entropy of every known label: the mean over all heads."""

    def __init__(self, positive_weight: float) -> None:
        self.positive_weight = positive_weight

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        targets = values_of(batch)
        losses = [known_entropy(z, targets, positive_weight=self.positive_weight) for z in outputs.values()]
        return {"loss": sum(losses[1:], losses[0]) / len(losses)}

    def meter(self, classes: tuple[str, ...]) -> Meter:
        return LabelMeter(classes)


class LabelMeter(RowMeter):
    """AUROC and average precision, each a mean over the classes that have one, and NaN where none has.

    A class that lacks positives or negatives has no AUROC, and one without positives no average precision.
    """

    def scores(self, outputs: dict[str, Tensor]) -> Tensor:
        return combine(outputs)

    def result(self) -> dict[str, Metric]:
        arrays = self.arrays()
        logits, targets = arrays["logits"], arrays["targets"]
        check_targets(torch.from_numpy(logits), torch.from_numpy(targets))
        columns = list(zip(logits.T, targets.T, strict=True))
        areas = [metrics.auroc(scores, truth) for scores, truth in columns]
        precisions = [metrics.average_precision(scores, truth) for scores, truth in columns]
        return {
            "auroc": Metric(mean_of_known(areas)),
            "average_precision": Metric(mean_of_known(precisions)),
            "loss": loss_metric(float(known_entropy(torch.from_numpy(logits), torch.from_numpy(targets)))),
            **{
                f"auroc/{name}": Metric(area)
                for name, area in zip(self.classes, areas, strict=True)
                if not math.isnan(area)
            },
        }


def known_entropy(
    logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"], *, positive_weight: float = 1.0
) -> Float[Tensor, ""]:
    """Binary cross-entropy of the known targets, summed and divided by the number of all."""
    check_targets(logits, targets)
    known, targets = ~targets.isnan(), targets.nan_to_num().float()
    weight = torch.tensor(positive_weight, device=logits.device)
    entropies = F.binary_cross_entropy_with_logits(logits.float(), targets, pos_weight=weight, reduction="none")
    return (entropies * known).sum() / targets.numel()


def mean_of_known(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan
