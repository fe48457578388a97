"""Classification metrics as pure functions of NumPy arrays.

``scores`` (n, k) are logits or probabilities, ``labels`` (n,) the indices of the true classes. AUROC and average
precision take the ``scores`` (n,) and ``targets`` (n,) of a single class; targets are 1, 0, or NaN (unknown, ignored).
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
    """Compute the top-1 accuracy."""
    return top_k(scores, labels, k=1)


def top_k(scores: Array, labels: Array, *, k: int) -> float:
    """Compute the top-k accuracy; ties rank the class with the lower index first."""
    check_scores(scores, labels)
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    earlier = np.arange(scores.shape[1]) < labels[:, None]
    rank = ((scores > own) | ((scores == own) & earlier)).sum(axis=1)
    return float((rank < k).mean())


def confusion(scores: Array, labels: Array) -> NDArray[np.int64]:
    """Compute the confusion matrix (k, k): true classes as rows, predicted classes as columns."""
    check_scores(scores, labels)
    num_classes = scores.shape[1]
    cells = labels * num_classes + scores.argmax(axis=1)
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


@dataclass(frozen=True)
class PerClass:
    """Precision, recall, F1 and support of every class (k,); NaN where 0 / 0."""

    precision: NDArray[np.float64]  # correct / predicted as the class
    recall: NDArray[np.float64]  # correct / belonging to the class
    f1: NDArray[np.float64]  # 2 · precision · recall / (precision + recall)
    support: NDArray[np.int64]  # number of images of the class

    @classmethod
    def of(cls, correct: NDArray[np.int64], predicted: NDArray[np.int64], support: NDArray[np.int64]) -> PerClass:
        return cls(ratio(correct, predicted), ratio(correct, support), ratio(2 * correct, predicted + support), support)


def per_class(matrix: Array) -> PerClass:
    """Compute per-class metrics from a confusion matrix with the true classes as rows."""
    return PerClass.of(np.diag(matrix), matrix.sum(axis=0), matrix.sum(axis=1))


def per_class_of(labels: Array, predicted: Array, num_classes: int) -> PerClass:
    """Compute per-class metrics from the true and the predicted class of each image, without a matrix."""
    counted = (labels[labels == predicted], predicted, labels)
    return PerClass.of(*(np.bincount(classes, minlength=num_classes) for classes in counted))


def ratio(numerator: Array, denominator: Array) -> NDArray[np.float64]:
    """Divide elementwise, with NaN where the denominator is zero."""
    return np.divide(numerator, denominator, out=np.full(len(denominator), np.nan), where=denominator > 0)


@dataclass(frozen=True)
class Reliability:
    """Reliability diagram: predictions in confidence bins of equal width; empty bins have NaN means."""

    edges: NDArray[np.float64]  # (bins + 1,)
    count: NDArray[np.int64]
    confidence: NDArray[np.float64]  # mean confidence per bin
    accuracy: NDArray[np.float64]  # accuracy per bin

    @property
    def error(self) -> float:
        """Expected calibration error: Σ over bins of (count / n) · |accuracy − confidence|."""
        gaps = np.nan_to_num(np.abs(self.accuracy - self.confidence))
        return float((self.count * gaps).sum() / self.count.sum())


def reliability(probabilities: Array, labels: Array, *, bins: int = 15) -> Reliability:
    """Compute the accuracy per bin of confidence, the highest probability. A bin includes its upper edge."""
    check_scores(probabilities, labels)
    return bin_confidence(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels, bins=bins)


def bin_confidence(confidence: Array, correct: NDArray[np.bool_], *, bins: int = 15) -> Reliability:
    """Compute the accuracy per bin of confidence from each prediction's confidence, and whether it is correct."""
    confidence = confidence.astype(np.float64)
    edges = np.linspace(0, 1, bins + 1)
    indices = np.clip(np.digitize(confidence, edges, right=True) - 1, 0, bins - 1)
    count = np.bincount(indices, minlength=bins)
    sums = (np.bincount(indices, weights=values, minlength=bins) for values in (confidence, correct))
    return Reliability(edges, count, *(ratio(total, count) for total in sums))


def calibration_error(probabilities: Array, labels: Array, *, bins: int = 15) -> float:
    """Compute the expected calibration error (ECE): 0 if predictions with 80 % confidence are correct 80 % of the time.

    Σ over ``bins`` of equal width of (count / n) · |accuracy − mean confidence|, confidence being the highest
    probability ("On Calibration of Modern Neural Networks", Guo et al. 2017, arXiv 1706.04599).
    """
    return reliability(probabilities, labels, bins=bins).error


def auroc(scores: Array, targets: Array) -> float:
    """Compute the area under the ROC curve; NaN without positives or without negatives.

    As a rank sum: (Σ ranks of positives − P(P + 1)/2) / (P · N), where tied scores share their mean rank.
    """
    scores, positive = drop_unknown(scores, targets)
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if not num_positive or not num_negative:
        return math.nan
    _, inverse, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[inverse]
    return float((ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def average_precision(scores: Array, targets: Array) -> float:
    """Compute Σ (recallᵢ − recallᵢ₋₁) · precisionᵢ, with each distinct score as a threshold; NaN without positives."""
    scores, positive = drop_unknown(scores, targets)
    if not positive.any():
        return math.nan
    _, inverse = np.unique(-scores, return_inverse=True)
    predicted = np.cumsum(np.bincount(inverse))
    new_hits = np.bincount(inverse, weights=positive)
    return float((new_hits * np.cumsum(new_hits) / predicted).sum() / positive.sum())


def drop_unknown(scores: Array, targets: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Drop scores with unknown targets; return the others and whether each is positive."""
    if scores.shape != targets.shape or scores.ndim != 1:
        raise ValueError(f"scores and targets must have the same shape (n,), got {scores.shape} and {targets.shape}")
    known = ~np.isnan(targets)
    check_not_nan(scores[known])
    return scores[known], targets[known] > 0.5


def check_scores(scores: Array, labels: Array) -> None:
    """Raise ValueError for wrong shapes, labels out of range, or NaN scores."""
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not len(labels):
        raise ValueError(
            f"expected scores (n, classes) and labels (n,) of at least one image, "
            f"got shapes {scores.shape} and {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(
            f"labels must lie in 0 … {scores.shape[1] - 1}, got values from {labels.min()} to {labels.max()}"
        )
    check_not_nan(scores)


def check_not_nan(scores: Array) -> None:
    if np.isnan(scores).any():
        raise ValueError("some scores are NaN: the model has probably diverged")
