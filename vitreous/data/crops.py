"""Random crops and flips of a training batch, as views."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitreous.data.view import View, covering_view
from vitreous.spec import Size

if TYPE_CHECKING:
    from vitreous.data.augment import Augment, Draws

TRIES = 10  # boxes drawn for each image; the first that fits is used
BOX_NUMBERS = 2 * TRIES + 2  # an area and an aspect ratio for each try, and a position
CROP_ASPECT = (3 / 4, 4 / 3)

Numbers = NDArray[np.float32]


def training_views(augment: Augment, source: Size, size: Size, draws: Draws) -> list[View]:
    """Draw a crop and a flip for each image of a batch; all images have the size ``source``."""
    numbers = draws.uniform("crop", BOX_NUMBERS + 1)
    numbers, flipped = numbers[:, :-1], numbers[:, -1] < augment.flip_rate
    if augment.crop == "resized":
        boxes = crop_boxes(numbers, source, augment.crop_scale)
        return [
            View(source, (top, left, tall, wide), size, size, flipped=bool(flip))
            for (top, left, tall, wide), flip in zip(boxes.tolist(), flipped, strict=True)
        ]
    whole, pad = covering_view(source, size), augment.max_shift
    shifts = (numbers[:, -2:] * (2 * pad + 1)).astype(np.int64) - pad
    return [
        replace(whole, offset=(-down, -right), flipped=bool(flip))
        for (down, right), flip in zip(shifts.tolist(), flipped, strict=True)
    ]


def crop_boxes(numbers: Numbers, size: Size, scale: tuple[float, float]) -> NDArray[np.int64]:
    """Compute boxes (b, 4) as top, left, height, width, like torchvision's ``RandomResizedCrop``."""
    boxes, found = random_boxes(numbers, size, area=scale, aspect=CROP_ASPECT)
    height, width = size
    tall, wide = min(height, round(width / CROP_ASPECT[0])), min(width, round(height * CROP_ASPECT[1]))
    middle = np.array([(height - tall) // 2, (width - wide) // 2, tall, wide])
    return np.where(found[:, None], boxes, middle)


def random_boxes(
    numbers: Numbers, size: Size, *, area: tuple[float, float], aspect: tuple[float, float]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Compute boxes (b, 4) as top, left, height, width, and a mask (b,) of those that fit into the image.

    The share of the area is uniform within ``area``, the aspect ratio log-uniform within ``aspect``.
    """
    height, width = size
    for_area, for_aspect = numbers[:, :TRIES].astype(float), numbers[:, TRIES : 2 * TRIES].astype(float)
    areas = (area[0] + (area[1] - area[0]) * for_area) * (height * width)
    aspects = aspect[0] * (aspect[1] / aspect[0]) ** for_aspect
    talls, wides = np.round(np.sqrt(areas / aspects)), np.round(np.sqrt(areas * aspects))
    fits = (talls > 0) & (talls <= height) & (wides > 0) & (wides <= width)
    rows, first = np.arange(len(numbers)), fits.argmax(axis=1)
    tall, wide = talls[rows, first], wides[rows, first]
    num_positions = np.maximum(np.stack([height - tall, width - wide], axis=1), 0) + 1
    position = np.floor(numbers[:, -2:] * num_positions)
    return np.column_stack([position, tall, wide]).astype(np.int64), fits[rows, first]
