"""What a dataset is: labelled pictures by index.

Two kinds. *Pixels* are all of one size and at hand as bytes, so that a whole batch is cut and coloured at once.
*Pictures* have any size and are opened one by one. Targets are vectors for both, one row a picture: a one in the
class's column, or for several labels ones and zeros, and NaN where nobody knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.spec import Size

Indices = NDArray[np.int64]


class Dataset(ABC):
    """Pictures with targets (n, classes); a subclass is :class:`Pixels` or :class:`Pictures`."""

    classes: tuple[str, ...]
    multi_label: bool = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def targets(self, indices: Indices) -> NDArray[np.float32]:
        """One row (classes,) per picture."""

    @abstractmethod
    def subset(self, indices: Indices) -> Dataset:
        """Only these pictures, in this order."""

    def order(self, seed: int, epoch: int) -> Indices:
        """The order of an epoch: a pure function of its arguments, the same on every machine."""
        return np.random.default_rng([seed, epoch]).permutation(len(self))

    def where(self, index: int) -> str:
        """What to call a picture when speaking of it."""
        return f"image {index}"


class Pixels(Dataset):
    """Pictures of one size, as bytes."""

    image_size: Size
    num_channels: int

    @abstractmethod
    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        """(b, c, y, x)"""


class Pictures(Dataset):
    """Pictures of any size, opened one by one."""

    @abstractmethod
    def picture(self, index: int) -> Image.Image:
        """RGB or grey in 8 bits, upright; raises ``BadPicture`` where that cannot be."""


class Arrays(Pixels):
    """A set that lives in memory: ``images`` (n, c, y, x) bytes, ``targets`` (n, classes)."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        targets: NDArray[np.float32],
        classes: Sequence[str],
        *,
        multi_label: bool = False,
        names: Sequence[str] | None = None,
    ) -> None:
        if images.ndim != 4 or images.dtype != np.uint8:
            raise ValueError(f"images must be bytes of shape (n, c, y, x), got {images.dtype} {images.shape}")
        if targets.shape != (len(images), len(classes)):
            raise ValueError(f"{len(images)} images of {len(classes)} classes, but targets of shape {targets.shape}")
        self.images, self.all_targets = images, targets.astype(np.float32)
        self.classes, self.multi_label, self.names = tuple(classes), multi_label, names
        self.num_channels, self.image_size = images.shape[1], (images.shape[2], images.shape[3])

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        return self.images[indices]

    def targets(self, indices: Indices) -> NDArray[np.float32]:
        return self.all_targets[indices]

    def subset(self, indices: Indices) -> Arrays:
        names = None if self.names is None else [self.names[index] for index in indices]
        part = (self.images[indices], self.all_targets[indices], self.classes)
        return Arrays(*part, multi_label=self.multi_label, names=names)

    def where(self, index: int) -> str:
        return self.names[index] if self.names else super().where(index)


def one_hot(labels: Sequence[int] | NDArray[Any], num_classes: int) -> NDArray[np.float32]:
    """Targets from class numbers; a number that is no class is an error that names it."""
    labels = np.asarray(labels, dtype=np.int64)
    check_labels(labels, num_classes)
    targets = np.zeros((len(labels), num_classes), dtype=np.float32)
    targets[np.arange(len(labels)), labels] = 1
    return targets


def check_labels(labels: NDArray[Any], num_classes: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise ValueError(
            f"label {labels[wrong[0]]} of image {wrong[0]} is out of range: there are {num_classes} classes, "
            f"numbered 0 to {num_classes - 1} ({len(wrong)} such labels in all)"
        )
