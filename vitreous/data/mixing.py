"""MixUp, CutMix and patch-wise MixUp, each expressed as a map of pixel weights.

    x = w ⊙ x_A + (1 − w) ⊙ x_B        t = λ t_A + (1 − λ) t_B        λ = the mean of w

MixUp (https://arxiv.org/abs/1710.09412) has one weight for all pixels, CutMix (https://arxiv.org/abs/1905.04899) zeros
in a box and ones around it, and patch-wise MixUp one weight per patch. Targets are vectors, so multi-label targets can
be mixed as well.

Partners are neighbors in the global batch, 0 with 1, 2 with 3, for any number of processes: a process whose rows split
a pair also loads the partner's image (:func:`pair_aligned_rows`), so that processes need not communicate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.samples import Classes, Targets
from vitreous.spec import Size

if TYPE_CHECKING:
    from vitreous.data.augment import Augment, Draws

Weights = NDArray[np.float32]


def mix(images: Tensor, targets: Targets, augment: Augment, draws: Draws) -> tuple[Tensor, Targets]:
    """Mix each image (b, c, y, x) and its class vector with its partner's."""
    if not active_mixers(augment) or len(images) < 2:
        return images, targets
    assert isinstance(targets, Classes)
    height, width = images.shape[-2:]
    partner = torch.from_numpy(partners(len(images)))
    weights = torch.from_numpy(mixing_weights(augment, (height, width), draws))
    share = weights.double().mean(dim=(1, 2)).float()
    mixed = torch.lerp(images[partner], images, weights[:, None])
    values = mixed_targets(targets.values, targets.values[partner], share[:, None])
    return mixed, replace(targets, values=values)


def partners(number: int) -> NDArray[np.int64]:
    """Return the partner's index of each image; the last image of an odd batch is its own partner."""
    index = np.arange(number)
    return np.where(index ^ 1 < number, index ^ 1, index)


def pair_aligned_rows(rows: slice, batch_size: int) -> slice:
    """Extend rows of a batch to include all partners; the last row of an odd batch has none."""
    return slice(rows.start - rows.start % 2, min(rows.stop + rows.stop % 2, batch_size))


def mixed_targets(own: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Compute λ own + (1 − λ) other; NaN (unknown) propagates unless its weight is 0."""
    blend = share * own + (1 - share) * other
    return torch.where(share == 1, own, torch.where(share == 0, other, blend))


def mixing_weights(augment: Augment, size: Size, draws: Draws) -> Weights:
    """Compute the weights (b, y, x) of each image's own pixels; ones for an image that is not mixed."""
    kinds = active_mixers(augment)
    mixes, choice = draws.uniform("mix", 2).T
    alone = partners(len(draws)) == np.arange(len(draws))
    kind = np.where((mixes < augment.mix_rate) & ~alone, (choice * len(kinds)).astype(np.int64), -1)
    weights = np.ones((len(draws), *size), dtype=np.float32)
    for index, name in enumerate(kinds):
        weights[kind == index] = MIXERS[name](augment, size, draws)[kind == index]
    return weights


def active_mixers(augment: Augment) -> list[str]:
    return [name for name in MIXERS if getattr(augment, name) > 0]


def mixup_weights(augment: Augment, size: Size, draws: Draws) -> Weights:
    """Draw one weight per image (b, 1, 1)."""
    return draws.beta("mixup", augment.mixup, 1)[:, :, None]


def cutmix_weights(augment: Augment, size: Size, draws: Draws) -> Weights:
    """Draw weights (b, y, x): zeros in a box of 1 − λ of the area, clipped to the image."""
    side = np.sqrt(1 - draws.beta("cutmix", augment.cutmix, 1))
    center = draws.uniform("cutmix box", 2)
    inside = []
    for axis, length in enumerate(size):
        reach = (side * length).astype(np.int64)
        start = (center[:, axis : axis + 1] * length).astype(np.int64) - reach // 2
        place = np.arange(length)
        inside.append((place >= start) & (place < start + reach))
    rows, columns = inside
    return (~(rows[:, :, None] & columns[:, None, :])).astype(np.float32)


def patch_weights(augment: Augment, size: Size, draws: Draws) -> Weights:
    """Draw weights (b, y, x), one per patch; the last patches are cut off where they do not fit."""
    side = augment.patch_mixup_size
    tall, wide = (-(-length // side) for length in size)
    patches = draws.beta("patch mixup", augment.patch_mixup, tall * wide).reshape(-1, tall, wide)
    return patches.repeat(side, axis=1).repeat(side, axis=2)[:, : size[0], : size[1]]


MIXERS: dict[str, Callable[[Augment, Size, Draws], Weights]] = {
    "mixup": mixup_weights,
    "cutmix": cutmix_weights,
    "patch_mixup": patch_weights,
}
