"""What training does to images, a whole batch at a time: settings, draws, and the way from bytes to a model's input.

All randomness comes from :class:`Draws`, so that an augmented batch is a pure function of seed, epoch and step: the
same after a resume, and the same for one process as for many that share it.

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
from vitreous.data.randaugment import MOST, randaugment
from vitreous.data.view import evaluation_view, seen_through
from vitreous.options import Between, Count, Options, Share
from vitreous.samples import Targets
from vitreous.spec import Preprocess

Crop = Literal["none", "pad", "resized"]
Alpha = Annotated[float, Between(0, 1000)]  # of Beta(α, α)
ERASED_AREA, ERASED_ASPECT = (0.02, 0.33), (0.3, 3.3)


@dataclass(frozen=True)
class Augment(Options):
    """How training images are varied. The kinds of mixing that are on take turns, image by image."""

    crop: Crop = "resized"  # a random part of the image, the whole shifted into a reflected border, or just the whole
    pad: Count = 4  # pixels of reflected border that a "pad" crop may shift into
    crop_scale: tuple[Share, Share] = (0.35, 1.0)  # least and largest share of the area in a "resized" crop
    flip_rate: Share = 0.5  # share of images that are mirrored
    randaugment_ops: Annotated[int, Between(0, 100)] = 0  # RandAugment's operations per image; 0: none
    randaugment_magnitude: Annotated[int, Between(0, MOST)] = 9  # RandAugment's strength, 0 to 30
    erase_rate: Share = 0.0  # share of images in which a box is blanked out
    mixup: Alpha = 0.0  # α of MixUp's Beta(α, α); 0: off
    cutmix: Alpha = 0.0  # α of CutMix; 0: off
    patch_mixup: Alpha = 0.0  # α of MixUp with weights of its own for every patch; 0: off
    patch_mixup_size: int = 4  # side of those patches in pixels
    mix_rate: Share = 1.0  # share of images that are mixed at all

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.crop_scale
        if not 0 < low <= high:
            raise ValueError(f"crop_scale must be two shares with 0 < least ≤ largest ≤ 1, got {self.crop_scale}")

    def check_for(self, target: type[Targets], *, several_views: bool = False) -> None:
        """Refuse what this kind of target cannot take."""
        if not target.mixable and (self.mixup or self.cutmix or self.patch_mixup):
            raise ValueError(
                f"MixUp and CutMix blend class targets, the data has {target.words}; set augment.mixup, augment.cutmix "
                "and augment.patch_mixup to 0"
            )
        moves = self.crop != "none" or self.flip_rate or self.randaugment_ops or self.erase_rate
        if several_views and (moves or self.mixup or self.cutmix or self.patch_mixup):
            raise ValueError(
                "the views of one scene belong together and are not augmented one by one; set augment.crop none, "
                "augment.flip_rate 0 and leave the rest off"
            )

    @property
    def shift(self) -> int:
        """How far a crop that keeps the image's scale may move, in pixels."""
        return self.pad if self.crop == "pad" else 0


@dataclass(frozen=True)
class Draws:
    """Random numbers for ``rows`` of a batch, one row an image; always thrown for the whole batch.

    What an image gets depends on seed, epoch, step and its place in the whole batch, never on ``rows``: processes that
    share a batch agree with one that has it alone.
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
        """The dice of one image alone."""
        place = range(*self.rows.indices(self.batch))[index]
        return replace(self, rows=slice(place, place + 1))

    def check(self, images: Tensor) -> None:
        if len(images) != len(self):
            raise ValueError(f"draws for {len(self)} images do not fit a batch of {len(images)}")

    def uniform(self, purpose: str, count: int) -> NDArray[np.float32]:
        """(b, count) numbers in [0, 1)."""
        return uniform_numbers(self.stream(purpose), self.batch, count)[self.rows]

    def beta(self, purpose: str, alpha: float, count: int) -> NDArray[np.float32]:
        """(b, count) numbers from Beta(α, α)."""
        numbers = np.random.default_rng(self.stream(purpose)).beta(alpha, alpha, (self.batch, count))
        return numbers.astype(np.float32)[self.rows]

    def stream(self, purpose: str) -> tuple[int, ...]:
        """Each purpose has a stream of its own, so that one more does not change the others."""
        return (*self.key, zlib.crc32(purpose.encode()))


@functools.lru_cache(maxsize=4)
def uniform_numbers(stream: tuple[int, ...], batch: int, count: int) -> NDArray[np.float32]:
    """(batch, count); kept for a while, since images that are opened one by one ask for the same batch each."""
    numbers = np.random.default_rng(stream).random((batch, count), dtype=np.float32)
    numbers.flags.writeable = False
    return numbers


def augment_pixels(
    images: Tensor, targets: Targets, augment: Augment, *, preprocess: Preprocess, draws: Draws
) -> tuple[Tensor, Targets]:
    """Cropped bytes (b, c, y, x) with targets → what the model sees: RandAugment, normalized, erased, mixed."""
    draws.check(images)
    images, targets = randaugment(images, targets, augment, draws)
    pixels = normalize(images, preprocess)
    return mix(erase(pixels, augment.erase_rate, draws), targets, augment, draws)


def evaluation_pixels(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Bytes (b, c, y, x) → normalized floats, seen through the view that the preprocessing says."""
    view = evaluation_view((images.shape[-2], images.shape[-1]), preprocess)
    if view.resamples or view.size != view.source:
        images = seen_through(images, [view] * len(images), fill_color(preprocess))
    return normalize(images, preprocess)


def fill_color(preprocess: Preprocess) -> list[int]:
    """The mean color as bytes, which normalization makes zero."""
    return [round(min(max(255 * value, 0), 255)) for value in preprocess.mean]


def normalize(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Bytes → (bytes / 255 − mean) / std."""
    if images.shape[-3] != preprocess.num_channels:
        raise ValueError(f"images of {images.shape[-3]} channels, but the model takes {preprocess.num_channels}")
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    return images.float().sub_(255 * mean).mul_(1 / (255 * std))


def erase(images: Tensor, rate: float, draws: Draws) -> Tensor:
    """Random erasing: a box of a share ``rate`` of the images becomes 0, the mean color. Done in place."""
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
