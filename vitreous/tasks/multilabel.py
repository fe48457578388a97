"""Any number of labels per picture, some of them unknown.

    loss = −1/(B·K) Σ [p · t · log σ(z) + (1 − t) · log(1 − σ(z))]

over the known among B pictures × K classes, with a weight p of positives. Dividing by all B·K rather than by the
known makes the loss of a batch the mean of its parts' losses, so that it does not depend on how many processes share
the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.spec import Batch
from vitreous.tasks import metrics
from vitreous.tasks.base import Forward, Task, check_targets, combine


@dataclass(frozen=True)
class MultiLabel(Task):
    """Each picture has any number of labels; targets are 1, 0, and NaN where nobody knows."""

    positive_weight: float = 1.0  # how much a label that is there counts against one that is not

    def __post_init__(self) -> None:
        if not 0 < self.positive_weight < math.inf:
            raise ValueError(f"positive_weight must be a positive number, got {self.positive_weight}")

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, Tensor]:
        heads = forward(batch.images)
        losses = [known_entropy(z, batch.targets, positive_weight=self.positive_weight) for z in heads.values()]
        return sum(losses[1:], losses[0]) / len(losses), combine(heads).detach()

    def measure(self, logits: Tensor, targets: Tensor, classes: tuple[str, ...]) -> dict[str, float]:
        """A class that lacks positives or negatives has no AUROC, and one without positives no average precision.

        Means are over the classes that have one, and NaN where none has.
        """
        check_targets(logits, targets)
        columns = list(zip(logits.float().cpu().numpy().T, targets.float().cpu().numpy().T, strict=True))
        areas = [metrics.auroc(scores, truth) for scores, truth in columns]
        precisions = [metrics.average_precision(scores, truth) for scores, truth in columns]
        return {
            "auroc": mean_of_known(areas),
            "average_precision": mean_of_known(precisions),
            "loss": float(known_entropy(logits, targets)),
            **{f"auroc/{name}": area for name, area in zip(classes, areas, strict=True) if not math.isnan(area)},
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
