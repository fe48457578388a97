"""Batched RandAugment (https://arxiv.org/abs/1909.13719) with torchvision's operations and magnitudes.

Each round draws an operation and a sign for every image, and images with the same draw are processed together: at most
23 calls per round for any batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from vitreous.samples import IGNORED, Targets
from vitreous.spec import Size

if TYPE_CHECKING:
    from vitreous.data.augment import Augment, Draws

MAX_MAGNITUDE = 30


def randaugment(images: Tensor, targets: Targets, augment: Augment, draws: Draws) -> tuple[Tensor, Targets]:
    """Apply ``randaugment_ops`` random operations in sequence to every uint8 image (b, c, y, x).

    Masks and boxes are transformed alike; mask pixels from outside the image are ignored.
    """
    if not augment.randaugment_ops:
        return images, targets
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"RandAugment takes images of 1 or 3 channels, these have {images.shape[1]} channels; "
            "set randaugment_ops to 0"
        )
    names = [name for name in OPERATIONS if images.shape[1] == 3 or name != "Color"]
    numbers = draws.uniform("randaugment", 2 * augment.randaugment_ops)
    level = augment.randaugment_magnitude / MAX_MAGNITUDE
    for turn in range(augment.randaugment_ops):
        images, targets = apply_round(images, targets, names, level, numbers=numbers[:, 2 * turn : 2 * turn + 2])
    return images, targets


def apply_round(
    images: Tensor, targets: Targets, names: list[str], level: float, *, numbers: NDArray[np.float32]
) -> tuple[Tensor, Targets]:
    """Apply one operation to every image, chosen by its two random numbers: operation and sign."""
    choice = (numbers[:, 0] * len(names)).astype(np.int64)
    backwards = (numbers[:, 1] < 0.5) & np.array([name in SIGNED for name in names])[choice]
    group = 2 * choice + backwards
    result = images.clone()
    for key in np.unique(group):
        rows = torch.from_numpy(np.flatnonzero(group == key))
        apply = partial(apply_operation, OPERATIONS[names[key // 2]], -level if key % 2 else level)
        result[rows] = apply(images[rows])
        if names[key // 2] in GEOMETRIC:
            targets = targets.warp(rows, apply, (images.shape[-2], images.shape[-1]))
    return result, targets


def apply_operation(operation: Callable[[Tensor, float], Tensor], level: float, images: Tensor) -> Tensor:
    return operation(images, level)


def affine(images: Tensor, **changes: Any) -> Tensor:
    identity = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0], "fill": fill_value(images)}
    return F.affine(images, **(identity | changes))


def rotate(images: Tensor, level: float) -> Tensor:
    return F.rotate(images, 30 * level, fill=fill_value(images))


def size_of(images: Tensor) -> Size:
    """Return (height, width) of images and masks, or of the canvas of boxes."""
    if isinstance(images, tv_tensors.BoundingBoxes):
        return images.canvas_size
    return images.shape[-2], images.shape[-1]


def fill_value(images: Tensor) -> int | None:
    """Return the value of pixels that come from outside the image."""
    return IGNORED if isinstance(images, tv_tensors.Mask) else None


def shear_x(images: Tensor, level: float) -> Tensor:
    return affine(images, shear=[math.degrees(math.atan(0.3 * level)), 0.0], center=[0, 0])


def shear_y(images: Tensor, level: float) -> Tensor:
    return affine(images, shear=[0.0, math.degrees(math.atan(0.3 * level))], center=[0, 0])


def translate_x(images: Tensor, level: float) -> Tensor:
    return affine(images, translate=[int(150 / 331 * size_of(images)[1] * level), 0])


def translate_y(images: Tensor, level: float) -> Tensor:
    return affine(images, translate=[0, int(150 / 331 * size_of(images)[0] * level)])


#: Functions (images, level) → images by name; the level is in [0, 1], or in [−1, 1] for signed operations.
OPERATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "Identity": lambda images, level: images,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Rotate": rotate,
    "Brightness": lambda images, level: F.adjust_brightness(images, 1 + 0.9 * level),
    "Color": lambda images, level: F.adjust_saturation(images, 1 + 0.9 * level),
    "Contrast": lambda images, level: F.adjust_contrast(images, 1 + 0.9 * level),
    "Sharpness": lambda images, level: F.adjust_sharpness(images, 1 + 0.9 * level),
    "Posterize": lambda images, level: F.posterize(images, round(8 - 4 * level)),
    "Solarize": lambda images, level: F.solarize(images, 255 * (1 - level)),
    "AutoContrast": lambda images, level: F.autocontrast(images),
    "Equalize": lambda images, level: F.equalize(images),
}
GEOMETRIC = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"}
SIGNED = {
    *GEOMETRIC,
    *("Brightness", "Color", "Contrast", "Sharpness"),
}
