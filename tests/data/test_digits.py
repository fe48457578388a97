"""Scikit-learn's digits, and what is said where it is not installed."""

import sys

import numpy as np
import pytest

from vitreous.data.digits import open_digits


def test_digits():
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    data = open_digits().train
    assert data.images.shape == (1797, 1, 8, 8)
    assert (data.images.min(), data.images.max()) == (0, 255)
    assert np.abs(data.images[:, 0] / 255 * 16 - sklearn.images).max() < 0.04
    assert np.array_equal(data.all_targets.values.numpy().argmax(1), sklearn.target)
    assert data.classes == tuple("0123456789")


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match="pip install scikit-learn"):
        open_digits()
