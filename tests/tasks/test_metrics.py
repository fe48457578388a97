"""Metrics on examples computed by hand, chosen so that common mistakes give another result."""

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, confusion_matrix, precision_recall_fscore_support, roc_auc_score

from vitreous.tasks import metrics

NAN = math.nan


def test_softmax_does_not_overflow():
    assert np.allclose(metrics.softmax(np.array([[1000.0, 1000.0 - math.log(3)]])), [[0.75, 0.25]])


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, 0.25), (2, 0.75), (3, 1.0)],
)
def test_top_k(k, expected):
    scores = np.array([[0.1, 0.9, 0.2], [0.5, 0.6, 0.4], [3.0, 1.0, 2.0], [1.0, 2.0, 1.5]])
    assert metrics.top_k(scores, np.array([1, 0, 2, 0]), k=k) == expected


def test_constant_scores_are_not_always_correct():
    scores, labels = np.zeros((10, 10)), np.arange(10)
    assert metrics.accuracy(scores, labels) == 0.1
    assert metrics.top_k(scores, labels, k=5) == 0.5


def test_confusion_has_the_truth_in_its_rows():
    predicted, labels = np.array([1, 1, 0, 2, 1]), np.array([0, 1, 0, 1, 0])
    matrix = metrics.confusion(np.eye(4)[predicted], labels)
    assert matrix.tolist() == [[1, 2, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert (matrix == confusion_matrix(labels, predicted, labels=range(4))).all()


def test_per_class_by_hand():
    table = metrics.per_class(np.array([[1, 2, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]))
    assert table.support.tolist() == [3, 2, 0, 0]
    assert np.allclose(table.precision, [1, 1 / 3, 0, NAN], equal_nan=True)
    assert np.allclose(table.recall, [1 / 3, 1 / 2, NAN, NAN], equal_nan=True)
    assert np.allclose(table.f1, [1 / 2, 2 / 5, 0, NAN], equal_nan=True)


def test_per_class_equals_scikit_learn():
    generator = np.random.default_rng(0)
    scores, labels = generator.normal(size=(500, 6)), generator.integers(0, 6, 500)
    ours = metrics.per_class(metrics.confusion(scores, labels))
    theirs = precision_recall_fscore_support(labels, scores.argmax(1))
    for mine, other in zip((ours.precision, ours.recall, ours.f1, ours.support), theirs, strict=True):
        assert np.allclose(mine, other)


def test_calibration_error_by_hand():
    """Two predictions at 0.9 (one correct), one at 0.6 (correct), two at 0.55 in another bin (none correct)."""
    confidence = np.array([0.9, 0.9, 0.61, 0.55, 0.55])
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    labels = np.array([0, 1, 0, 1, 1])
    expected = 2 / 5 * abs(0.5 - 0.9) + 1 / 5 * abs(1 - 0.61) + 2 / 5 * abs(0 - 0.55)
    assert metrics.calibration_error(probabilities, labels) == pytest.approx(expected)
    assert metrics.calibration_error(probabilities, labels, bins=1) == pytest.approx(abs(2 / 5 - confidence.mean()))


def test_reliability_bins_hold_their_upper_edge_and_certainty():
    probabilities = np.array([[1.0, 0.0], [0.5, 0.5], [0.75, 0.25]])
    bins = metrics.reliability(probabilities, np.array([0, 1, 0]), bins=4)
    assert bins.count.tolist() == [0, 1, 1, 1]
    assert np.allclose(bins.confidence, [NAN, 0.5, 0.75, 1.0], equal_nan=True)
    assert np.allclose(bins.accuracy, [NAN, 0.0, 1.0, 1.0], equal_nan=True)


@pytest.mark.parametrize(
    ("scores", "targets", "area"),
    [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        ([0.5, 0.5, 0.5], [0, 1, 1], 0.5),  # constant scores, in any order
        ([0.5, 0.5, 0.5], [1, 1, 0], 0.5),
        ([1, 1, 2, 2], [0, 1, 0, 1], 0.5),
        ([1, 2, 3, 9], [0, 0, 1, NAN], 1.0),
        ([1, 2, 3, NAN], [1, 0, 0, NAN], 0.0),
        ([1, 2], [1, 1], NAN),
        ([1, 2, 3], [0, 0, NAN], NAN),
    ],
)
def test_auroc_by_hand(scores, targets, area):
    assert metrics.auroc(np.array(scores, float), np.array(targets, float)) == pytest.approx(area, nan_ok=True)


@pytest.mark.parametrize("levels", [3, 10, 10**9], ids=["many ties", "ties", "no ties"])
def test_curves_equal_scikit_learn(levels):
    generator = np.random.default_rng(levels)
    targets = (generator.random(300) < 0.3).astype(np.float32)
    scores = np.floor((generator.random(300) + 0.3 * targets) * levels) / levels
    assert metrics.auroc(scores, targets) == pytest.approx(roc_auc_score(targets, scores))
    assert metrics.average_precision(scores, targets) == pytest.approx(average_precision_score(targets, scores))
    unknown = np.where(generator.random(300) < 0.2, NAN, targets)
    there = ~np.isnan(unknown)
    assert metrics.auroc(scores, unknown) == pytest.approx(roc_auc_score(targets[there], scores[there]))


def test_average_precision_by_hand():
    scores, targets = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1.0, 0.0, 1.0, 0.0])
    assert metrics.average_precision(scores, targets) == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert math.isnan(metrics.average_precision(scores, np.zeros(4)))


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.zeros((0, 3)), np.zeros(0, int), "at least one image"),
        (np.zeros((2, 3)), np.zeros((2, 3), int), r"labels \(n,\)"),
        (np.zeros((2, 3)), np.array([0, 3]), "0 … 2"),
        (np.full((2, 3), NAN), np.array([0, 1]), "diverged"),
    ],
)
def test_invalid_scores_and_labels(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        metrics.accuracy(scores, labels)
