"""Scikit-learn's 1,797 handwritten digits: 8×8 pixels, gray, always at hand."""

from __future__ import annotations

import importlib

import numpy as np

from vitreous.data.base import Arrays
from vitreous.data.splits import Splits

BRIGHTEST = 16  # of scikit-learn's pixels


def open_digits() -> Splits:
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError:
        raise ValueError("digits come with scikit-learn, which is not installed: pip install scikit-learn") from None
    digits = datasets.load_digits()
    images = np.round(digits.images * (255 / BRIGHTEST)).astype(np.uint8)[:, None]
    return Splits(Arrays(images, digits.target, [str(digit) for digit in range(10)]))
