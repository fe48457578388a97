"""What a dataset is: images with targets, by index.

Two kinds. An :class:`ArrayDataset` holds images of one size as bytes, so that a whole batch is cut and augmented at
once. A :class:`FileDataset` opens images of any size one by one. Both give targets of one kind (``samples.py``), in
pixels of the image as it is: class vectors, several labels, masks, boxes or texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.samples import Classes, MultiLabels, Targets
from vitreous.spec import Size

Indices = NDArray[np.int64]
Views = tuple[Image.Image, ...]  # of one scene


class Dataset(ABC):
    """Images with targets; a subclass is an :class:`ArrayDataset` or a :class:`FileDataset`."""

    classes: tuple[str, ...]
    target: type[Targets] = Classes  # the kind of its targets
    num_views: int = 1  # images per scene

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def targets(self, indices: Indices) -> Targets:
        """One entry per image. Masks need images of one size: ask for one image at a time where sizes differ."""

    @abstractmethod
    def subset(self, indices: Indices) -> Dataset:
        """Only these images, in this order."""

    def order(self, seed: int, epoch: int) -> Indices:
        """The order of an epoch: a pure function of its arguments, the same on every machine."""
        return np.random.default_rng([seed, epoch]).permutation(len(self))

    def where(self, index: int) -> str:
        """A name for an image in messages."""
        return f"image {index}"

    def cameras(self, index: int) -> NDArray[np.float32] | None:
        """The projection matrices (v, 3, 4) of a scene's views, where they are known."""
        return None


class ArrayDataset(Dataset):
    """Images of one size, as bytes."""

    image_size: Size
    num_channels: int

    @abstractmethod
    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        """(b, c, y, x)"""

    def samples(self, indices: Indices) -> tuple[NDArray[np.uint8], Targets]:
        """Pixels and targets together, for sets that make both at once."""
        return self.pixels(indices), self.targets(indices)


class FileDataset(Dataset):
    """Images of any size, opened one by one."""

    @abstractmethod
    def subset(self, indices: Indices) -> FileDataset: ...

    @abstractmethod
    def image(self, index: int) -> Image.Image | Views:
        """RGB or gray in 8 bits, upright, or the several views of a scene; raises ``BadPicture`` where it cannot."""


class Arrays(ArrayDataset):
    """A set that lives in memory: ``images`` (n, c, y, x) bytes, ``targets`` of any kind or class vectors (n, k)."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        targets: Targets | NDArray[np.float32],
        classes: Sequence[str],
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        if images.ndim != 4 or images.dtype != np.uint8:
            raise ValueError(f"images must be bytes of shape (n, c, y, x), got {images.dtype} {images.shape}")
        if not isinstance(targets, Targets):
            targets = Classes(torch.from_numpy(targets.astype(np.float32)))
        self.num_channels, self.image_size = images.shape[1], (images.shape[2], images.shape[3])
        if len(targets) != len(images):
            raise ValueError(f"{len(images)} images, but targets for {len(targets)}")
        targets.check([self.image_size] * len(images), len(classes))
        self.images, self.all_targets, self.target = images, targets, type(targets)
        self.classes, self.names = tuple(classes), names

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        return self.images[indices]

    def targets(self, indices: Indices) -> Targets:
        return self.all_targets.take(torch.from_numpy(np.asarray(indices)))

    def subset(self, indices: Indices) -> Arrays:
        names = None if self.names is None else [self.names[index] for index in indices]
        return Arrays(self.images[indices], self.targets(indices), self.classes, names=names)

    def where(self, index: int) -> str:
        return self.names[index] if self.names else super().where(index)


def class_rows(dataset: Dataset, indices: Indices) -> NDArray[np.float32]:
    """Class vectors (n, classes) of some images."""
    targets = dataset.targets(indices)
    if not isinstance(targets, Classes):
        raise ValueError(f"class labels are needed, the data has {targets.words}")
    return targets.values.numpy()


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


def can_learn(wanted: type[Targets], dataset: Dataset) -> bool:
    """Whether a dataset's targets serve a task: a single class is a set of labels as well."""
    return dataset.target is wanted or (wanted is MultiLabels and dataset.target is Classes)
