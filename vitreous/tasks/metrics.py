"""How good answers are: pure functions of arrays.

``scores`` (n, k) are logits or probabilities, ``labels`` (n,) the numbers of the true classes. Curves of one class
take its ``scores`` (n,) and ``targets`` (n,): 1, 0, and NaN where nobody knows, which is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def accuracy(scores: Array, labels: Array) -> float:
    """The share of images whose highest score is the true class's."""
    return top_k(scores, labels, k=1)


def top_k(scores: Array, labels: Array, *, k: int) -> float:
    """The share whose true class is among the ``k`` highest scores; of equal ones the earlier class is higher."""
    check(scores, labels)
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    earlier = np.arange(scores.shape[1]) < labels[:, None]
    rank = ((scores > own) | ((scores == own) & earlier)).sum(axis=1)
    return float((rank < k).mean())


def confusion(scores: Array, labels: Array) -> NDArray[np.int64]:
    """How often class i (row) was taken for class j (column)."""
    check(scores, labels)
    num_classes = scores.shape[1]
    cells = labels * num_classes + scores.argmax(axis=1)
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


@dataclass(frozen=True)
class PerClass:
    """One value per class, NaN where it would be 0 / 0."""

    precision: NDArray[np.float64]  # of those called so, the share that is
    recall: NDArray[np.float64]  # of those that are, the share called so
    f1: NDArray[np.float64]  # 2 · precision · recall / (precision + recall)
    support: NDArray[np.int64]  # how many are


def per_class(matrix: Array) -> PerClass:
    """From a confusion matrix with the true classes as rows."""
    right, called, support = np.diag(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
    return PerClass(ratio(right, called), ratio(right, support), ratio(2 * right, called + support), support)


def ratio(part: Array, whole: Array) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


@dataclass(frozen=True)
class Reliability:
    """Answers sorted into bins of equal width by their confidence; an empty bin has NaN for both means."""

    edges: NDArray[np.float64]  # one more than bins
    count: NDArray[np.int64]
    confidence: NDArray[np.float64]  # mean probability of the answers given
    accuracy: NDArray[np.float64]  # share of them that were right

    @property
    def error(self) -> float:
        """Σ over bins of (count / n) · |accuracy − confidence|."""
        gaps = np.nan_to_num(np.abs(self.accuracy - self.confidence))
        return float((self.count * gaps).sum() / self.count.sum())


def reliability(probabilities: Array, labels: Array, *, bins: int = 15) -> Reliability:
    """How often answers given with some confidence, the highest probability, are right. A bin holds its upper edge."""
    check(probabilities, labels)
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    edges = np.linspace(0, 1, bins + 1)
    places = np.clip(np.digitize(confidence, edges, right=True) - 1, 0, bins - 1)
    count = np.bincount(places, minlength=bins)
    sums = (np.bincount(places, weights=values, minlength=bins) for values in (confidence, right))
    return Reliability(edges, count, *(ratio(total, count) for total in sums))


def calibration_error(probabilities: Array, labels: Array, *, bins: int = 15) -> float:
    """Expected calibration error: 0 when of the answers given with 80 % confidence 80 % are right, and so on.

    Σ over ``bins`` of equal width of (count / n) · |accuracy − mean confidence|, confidence being the highest
    probability ("On Calibration of Modern Neural Networks", Guo et al. 2017, arXiv 1706.04599).
    """
    return reliability(probabilities, labels, bins=bins).error


def auroc(scores: Array, targets: Array) -> float:
    """The chance that a positive scores above a negative, ties counting half; NaN when one kind is missing.

    By the sum of ranks: (Σ ranks of positives − P(P + 1)/2) / (P · N), equal scores sharing their mean rank.
    """
    scores, positive = known(scores, targets)
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if not num_positive or not num_negative:
        return math.nan
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    return float((ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def average_precision(scores: Array, targets: Array) -> float:
    """Σ (recallᵢ − recallᵢ₋₁) · precisionᵢ over falling thresholds i, one per distinct score; NaN without positives."""
    scores, positive = known(scores, targets)
    if not positive.any():
        return math.nan
    _, place = np.unique(-scores, return_inverse=True)
    called = np.cumsum(np.bincount(place))
    gained = np.bincount(place, weights=positive)
    return float((gained * np.cumsum(gained) / called).sum() / positive.sum())


def known(scores: Array, targets: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The scores whose target is known, and which of those are positive."""
    if scores.shape != targets.shape or scores.ndim != 1:
        raise ValueError(f"one score per target is needed, got shapes {scores.shape} and {targets.shape}")
    there = ~np.isnan(targets)
    check_numbers(scores[there])
    return scores[there], targets[there] > 0.5


def check(scores: Array, labels: Array) -> None:
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not len(labels):
        raise ValueError(
            f"scores (n, classes) and labels (n,) of at least one image are needed, "
            f"got shapes {scores.shape} and {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(
            f"labels must lie in 0 … {scores.shape[1] - 1}, got some from {labels.min()} to {labels.max()}"
        )
    check_numbers(scores)


def check_numbers(scores: Array) -> None:
    if np.isnan(scores).any():
        raise ValueError("some scores are NaN, so nothing can be measured: the model has probably diverged")
