"""Two images become one: MixUp, CutMix and MixUp in patches, each a map of weights over the pixels.

    x = w ⊙ x_A + (1 − w) ⊙ x_B        t = λ t_A + (1 − λ) t_B        λ = the mean of w

MixUp (https://arxiv.org/abs/1710.09412) has one weight for all pixels, CutMix (https://arxiv.org/abs/1905.04899) zeros
in a box and ones around it, and MixUp in patches a weight for every patch. Targets are vectors, so that several labels
work too.

Partners are neighbors in the whole batch, 0 with 1, 2 with 3, however many processes share it: one whose share begins
or ends between two partners opens the other's image as well (:func:`whole_pairs`), and nobody has to wait for anybody.
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
    """Images (b, c, y, x) and class vectors, each mixed with its partner's by weights of its own."""
    if not kinds_in_use(augment) or len(images) < 2:
        return images, targets
    assert isinstance(targets, Classes)
    height, width = images.shape[-2:]
    partner = torch.from_numpy(partners(len(images)))
    weights = torch.from_numpy(own_weights(augment, (height, width), draws))
    share = weights.double().mean(dim=(1, 2)).float()
    mixed = torch.lerp(images[partner], images, weights[:, None])
    values = mixed_targets(targets.values, targets.values[partner], share[:, None])
    return mixed, replace(targets, values=values)


def partners(number: int) -> NDArray[np.int64]:
    """Who is mixed with whom; an odd one at the end stays alone."""
    index = np.arange(number)
    return np.where(index ^ 1 < number, index ^ 1, index)


def whole_pairs(rows: slice, batch_size: int) -> slice:
    """These rows of a batch with the partners of all of them; the last of an odd batch has none."""
    return slice(rows.start - rows.start % 2, min(rows.stop + rows.stop % 2, batch_size))


def mixed_targets(own: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """λ own + (1 − λ) other: unknown (NaN) where either is, unless it has no part in the mixture."""
    blend = share * own + (1 - share) * other
    return torch.where(share == 1, own, torch.where(share == 0, other, blend))


def own_weights(augment: Augment, size: Size, draws: Draws) -> Weights:
    """(b, y, x): how much of each pixel is the image's own; ones for an image that is not mixed."""
    kinds = kinds_in_use(augment)
    mixes, choice = draws.uniform("mix", 2).T
    alone = partners(len(draws)) == np.arange(len(draws))
    kind = np.where((mixes < augment.mix_rate) & ~alone, (choice * len(kinds)).astype(np.int64), -1)
    weights = np.ones((len(draws), *size), dtype=np.float32)
    for index, name in enumerate(kinds):
        weights[kind == index] = KINDS[name](augment, size, draws)[kind == index]
    return weights


def kinds_in_use(augment: Augment) -> list[str]:
    return [name for name in KINDS if getattr(augment, name) > 0]


def mixup_weights(augment: Augment, size: Size, draws: Draws) -> Weights:
    """(b, 1, 1)"""
    return draws.beta("mixup", augment.mixup, 1)[:, :, None]


def cutmix_weights(augment: Augment, size: Size, draws: Draws) -> Weights:
    """(b, y, x): zeros in a box of 1 − λ of the area, less what of it lies outside the image."""
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
    """(b, y, x): one weight a patch; patches at the end are cut off where they do not fit."""
    side = augment.patch_mixup_size
    tall, wide = (-(-length // side) for length in size)
    patches = draws.beta("patch mixup", augment.patch_mixup, tall * wide).reshape(-1, tall, wide)
    return patches.repeat(side, axis=1).repeat(side, axis=2)[:, : size[0], : size[1]]


KINDS: dict[str, Callable[[Augment, Size, Draws], Weights]] = {
    "mixup": mixup_weights,
    "cutmix": cutmix_weights,
    "patch_mixup": patch_weights,
}
