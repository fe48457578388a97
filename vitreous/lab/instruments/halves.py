"""Dataset of two half disks: one object if they share a color, two objects otherwise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Arrays, one_hot
from vitreous.lab.trial import Trial

COLORS = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255)], dtype=np.uint8)
CLASSES = ("one object", "two objects")


def side(trial: Trial) -> int:
    """Return the side length of the images in pixels."""
    return trial.choose(16, 32)


def gaps(trial: Trial) -> tuple[int, ...]:
    """Return the gaps between the halves in pixels; the widest exceeds the convnet's receptive field."""
    return trial.choose((0, 3, 9), (0, 4, 8, 16, 23))


def two_halves(trial: Trial) -> tuple[Arrays, Arrays]:
    """Return training and validation images; the gaps repeat cyclically over the images."""
    train = draw_half_disks(trial, trial.choose(3_000, 20_000), seed=0)
    return train, draw_half_disks(trial, trial.choose(300, 2_000), seed=1)


def draw_half_disks(trial: Trial, number: int, *, seed: int) -> Arrays:
    """Draw images with half disks at random positions on a noisy background."""
    draws, size = np.random.default_rng(seed), side(trial)
    left, right = half_disk(size), half_disk(size)[:, ::-1]
    height, width = left.shape
    images = draws.integers(96, 160, (number, size, size, 3), dtype=np.uint8)
    labels = draws.integers(0, 2, number)
    colors = draws.integers(0, len(COLORS), number)
    others = (colors + labels * draws.integers(1, len(COLORS), number)) % len(COLORS)
    for image, gap, one, other in zip(images, gap_widths(trial, number), COLORS[colors], COLORS[others], strict=True):
        y = draws.integers(0, size - height + 1)
        x = draws.integers(0, size - 2 * width - gap + 1)
        image[y : y + height, x : x + width][left] = one
        image[y : y + height, x + width + gap : x + 2 * width + gap][right] = other
    return Arrays(images.transpose(0, 3, 1, 2).copy(), one_hot(labels, 2), CLASSES)


def gap_widths(trial: Trial, number: int) -> NDArray[np.int64]:
    """Return the gap of each of ``number`` images."""
    return np.resize(np.array(gaps(trial)), number)


def half_disk(size: int) -> NDArray[np.bool_]:
    """Return the mask of a left half disk, an eighth of the image wide (at least 3 pixels) and twice as high."""
    radius = max(3, size // 8)
    y, x = np.mgrid[0.5 : 2 * radius, 0.5:radius]
    inside: NDArray[np.bool_] = (y - radius) ** 2 + (x - radius) ** 2 < radius**2
    return inside
