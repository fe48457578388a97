"""Scikit-learn's 1,797 handwritten digits: 8×8 grayscale images, bundled with the package."""

from __future__ import annotations

import importlib

import numpy as np

from vitreous.data.base import Arrays
from vitreous.data.splits import Splits

MAX_PIXEL = 16  # scikit-learn's largest pixel value


def open_digits() -> Splits:
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError:
        raise ValueError("the digits dataset requires scikit-learn: pip install scikit-learn") from None
    digits = datasets.load_digits()
    images = np.round(digits.images * (255 / MAX_PIXEL)).astype(np.uint8)[:, None]
    return Splits(Arrays(images, digits.target, [str(digit) for digit in range(10)]))
