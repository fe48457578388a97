"""One class per picture.

    loss = −Σₖ tₖ · log softmax(z)ₖ,     t ← (1 − s) · t + s / K

for a target t that is a share of each of K classes (MixUp and CutMix mix them) and label smoothing s ("Rethinking the
Inception Architecture", Szegedy et al. 2015, arXiv 1512.00567); the mean over the batch, and over heads where a model
has several.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.spec import Batch
from vitreous.tasks import metrics
from vitreous.tasks.base import Forward, Task, check_share, check_targets, combine


@dataclass(frozen=True)
class Classify(Task):
    """Each picture belongs to one class."""

    smoothing: float = 0.0  # share of every target that is spread evenly over all classes

    def __post_init__(self) -> None:
        check_share("smoothing", self.smoothing, below_one=True)

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, Tensor]:
        heads = forward(batch.images)
        return head_losses(heads, batch.targets, smoothing=self.smoothing), combine(heads).detach()

    def measure(self, logits: Tensor, targets: Tensor, classes: tuple[str, ...]) -> dict[str, float]:
        return class_measures(logits, targets)


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


def class_measures(logits: Float[Tensor, "n k"], targets: Float[Tensor, "n k"]) -> dict[str, float]:
    """Accuracy, the best five where there are more, cross-entropy without smoothing, and calibration error."""
    check_targets(logits, targets)
    scores, labels = logits.float().cpu().numpy(), targets.argmax(dim=1).cpu().numpy()
    measures = {"accuracy": metrics.accuracy(scores, labels)}
    if scores.shape[1] > 5:
        measures["top5"] = metrics.top_k(scores, labels, k=5)
    measures["loss"] = float(cross_entropy(logits, targets))
    measures["calibration_error"] = metrics.calibration_error(metrics.softmax(scores), labels)
    return measures
