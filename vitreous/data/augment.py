"""Batched data augmentation: settings, random draws, and the conversion from uint8 images to a model's input.

All randomness comes from :class:`Draws`, so that an augmented batch is a pure function of seed, epoch and step:
identical after a resume, and for any number of processes that share it.

Crops and flips come first, as views (``crops.py``), since only they change an image's size. :func:`augment_pixels`
does the rest.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.crops import BOX_NUMBERS, random_boxes
from vitreous.data.mixing import mix
from vitreous.data.randaugment import MAX_MAGNITUDE, randaugment
from vitreous.data.view import apply_views, evaluation_view
from vitreous.options import Between, Count, Options, Share
from vitreous.samples import Targets
from vitreous.spec import Preprocess

Crop = Literal["none", "pad", "resized"]
Alpha = Annotated[float, Between(0, 1000)]  # of Beta(α, α)
ERASED_AREA, ERASED_ASPECT = (0.02, 0.33), (0.3, 3.3)


@dataclass(frozen=True)
class Augment(Options):
    """Augmentation settings of a training run.

    If several of mixup, cutmix and patch_mixup are positive, one of them is drawn for each image.
    """

    crop: Crop = "resized"  # a random resized crop, the whole image shifted into reflected padding, or the whole image
    pad: Count = 4  # pixels of reflected padding for crop "pad"
    crop_scale: tuple[Share, Share] = (0.35, 1.0)  # smallest and largest share of the area for crop "resized"
    flip_rate: Share = 0.5  # probability of a horizontal flip
    randaugment_ops: Annotated[int, Between(0, 100)] = 0  # RandAugment operations per image; 0: off
    randaugment_magnitude: Annotated[int, Between(0, MAX_MAGNITUDE)] = 9  # RandAugment magnitude, 0 to 30
    erase_rate: Share = 0.0  # probability of random erasing
    mixup: Alpha = 0.0  # α of MixUp's Beta(α, α); 0: off
    cutmix: Alpha = 0.0  # α of CutMix; 0: off
    patch_mixup: Alpha = 0.0  # α of MixUp with one weight per patch; 0: off
    patch_mixup_size: int = 4  # side of those patches in pixels
    mix_rate: Share = 1.0  # probability that an image is mixed

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.crop_scale
        if not 0 < low <= high:
            raise ValueError(f"crop_scale must be two shares with 0 < smallest ≤ largest ≤ 1, got {self.crop_scale}")

    def check_target(self, target: type[Targets], *, several_views: bool = False) -> None:
        """Raise ``ValueError`` if the settings do not apply to this type of target."""
        if not target.mixable and (self.mixup or self.cutmix or self.patch_mixup):
            raise ValueError(
                f"MixUp and CutMix need class targets, the data has {target.description}; set augment.mixup, "
                "augment.cutmix and augment.patch_mixup to 0"
            )
        moves = self.crop != "none" or self.flip_rate or self.randaugment_ops or self.erase_rate
        if several_views and (moves or self.mixup or self.cutmix or self.patch_mixup):
            raise ValueError(
                "multi-view scenes cannot be augmented, since their views must stay consistent; set augment.crop to "
                "none, augment.flip_rate to 0, and leave the other augmentations off"
            )

    @property
    def max_shift(self) -> int:
        """Largest shift in pixels of a crop that keeps the image's scale."""
        return self.pad if self.crop == "pad" else 0


@dataclass(frozen=True)
class Draws:
    """Random numbers for some rows of a batch, always drawn for the whole batch.

    The numbers of an image depend on seed, epoch, step and its index in the whole batch, never on ``rows``. Processes
    that share a batch therefore draw the same numbers as a single process.
    """

    key: tuple[int, int, int]
    batch: int
    rows: slice

    @classmethod
    def sample(cls, seed: int, epoch: int, step: int, batch: int, rows: slice = slice(None)) -> Draws:
        return cls((seed, epoch, step), batch, rows)

    def __len__(self) -> int:
        return len(range(*self.rows.indices(self.batch)))

    def row(self, index: int) -> Draws:
        """Return the draws of a single image."""
        row = range(*self.rows.indices(self.batch))[index]
        return replace(self, rows=slice(row, row + 1))

    def check(self, images: Tensor) -> None:
        if len(images) != len(self):
            raise ValueError(f"draws for {len(self)} images do not fit a batch of {len(images)}")

    def uniform(self, purpose: str, count: int) -> NDArray[np.float32]:
        """Draw uniform numbers (b, count) in [0, 1)."""
        return uniform_numbers(self.stream(purpose), self.batch, count)[self.rows]

    def beta(self, purpose: str, alpha: float, count: int) -> NDArray[np.float32]:
        """Draw numbers (b, count) from Beta(α, α)."""
        numbers = np.random.default_rng(self.stream(purpose)).beta(alpha, alpha, (self.batch, count))
        return numbers.astype(np.float32)[self.rows]

    def stream(self, purpose: str) -> tuple[int, ...]:
        """Return the seed of a purpose: each has a separate stream, so that adding one does not change the others."""
        return (*self.key, zlib.crc32(purpose.encode()))


@functools.lru_cache(maxsize=4)
def uniform_numbers(stream: tuple[int, ...], batch: int, count: int) -> NDArray[np.float32]:
    """Draw (batch, count) numbers; cached, since images opened one by one each request those of the same batch."""
    numbers = np.random.default_rng(stream).random((batch, count), dtype=np.float32)
    numbers.flags.writeable = False
    return numbers


def augment_pixels(
    images: Tensor, targets: Targets, augment: Augment, *, preprocess: Preprocess, draws: Draws
) -> tuple[Tensor, Targets]:
    """Apply RandAugment, normalization, random erasing and mixing to cropped uint8 images (b, c, y, x)."""
    draws.check(images)
    images, targets = randaugment(images, targets, augment, draws)
    pixels = normalize(images, preprocess)
    return mix(erase(pixels, augment.erase_rate, draws), targets, augment, draws)


def evaluation_pixels(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Resize, crop and normalize uint8 images (b, c, y, x) for evaluation."""
    view = evaluation_view((images.shape[-2], images.shape[-1]), preprocess)
    if view.resamples or view.size != view.source:
        images = apply_views(images, [view] * len(images), fill_color(preprocess))
    return normalize(images, preprocess)


def fill_color(preprocess: Preprocess) -> list[int]:
    """Return the mean color as uint8 values, which normalize to about zero."""
    return [round(min(max(255 * value, 0), 255)) for value in preprocess.mean]


def normalize(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Convert uint8 images to floats: (x / 255 − mean) / std."""
    if images.shape[-3] != preprocess.num_channels:
        raise ValueError(f"the images have {images.shape[-3]} channels, but the model takes {preprocess.num_channels}")
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    return images.float().sub_(255 * mean).mul_(1 / (255 * std))


def erase(images: Tensor, rate: float, draws: Draws) -> Tensor:
    """Random erasing, in place: with probability ``rate``, set a box of an image to 0, the mean color."""
    if not rate:
        return images
    height, width = images.shape[-2:]
    numbers = draws.uniform("erase", 1 + BOX_NUMBERS)
    boxes, found = random_boxes(numbers[:, 1:], (height, width), area=ERASED_AREA, aspect=ERASED_ASPECT)
    chosen = np.flatnonzero(found & (numbers[:, 0] < rate))
    top, left, tall, wide = (torch.from_numpy(side)[:, None] for side in boxes[chosen].T)
    y, x = torch.arange(height), torch.arange(width)
    inside = ((y >= top) & (y < top + tall))[:, :, None] & ((x >= left) & (x < left + wide))[:, None, :]
    rows = torch.from_numpy(chosen)
    images[rows] = images[rows].masked_fill_(inside[:, None], 0.0)
    return images
