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

from vitreous.data.labels import as_numbers, check_labels, one_hot, rows_of, stored
from vitreous.samples import Classes, MultiLabels, Targets
from vitreous.spec import Size

__all__ = ["ArrayDataset", "Arrays", "Dataset", "FileDataset", "can_learn", "check_labels", "class_rows", "one_hot"]

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

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        """Class labels of some images as they are kept (``labels.py``): numbers, sets of numbers, or rows."""
        return class_rows(self, indices)

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
        """RGB or gray in 8 bits, upright, or the several views of a scene; raises ``BadImage`` where it cannot."""


class Arrays(ArrayDataset):
    """A set that lives in memory: ``images`` (n, c, y, x) bytes, and a target for each.

    ``targets`` are of any kind, class numbers (n,), or class vectors (n, k). Classes are kept as numbers.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        targets: Targets | NDArray[Any],
        classes: Sequence[str],
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        if images.ndim != 4 or images.dtype != np.uint8:
            raise ValueError(f"images must be bytes of shape (n, c, y, x), got {images.dtype} {images.shape}")
        self.num_channels, self.image_size = images.shape[1], (images.shape[2], images.shape[3])
        if len(targets) != len(images):
            raise ValueError(f"{len(images)} images, but targets for {len(targets)}")
        if not isinstance(targets, Targets) and targets.ndim != 1:
            targets = Classes(torch.from_numpy(targets.astype(np.float32)))
        if isinstance(targets, Targets):
            targets.check([self.image_size] * len(images), len(classes))
        self.target = type(targets) if isinstance(targets, Targets) else Classes
        self.images, self.kept = images, kept_small(targets, len(classes))
        self.classes, self.names = tuple(classes), names

    @property
    def all_targets(self) -> Targets:
        return self.targets(np.arange(len(self)))

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        return self.images[indices]

    def targets(self, indices: Indices) -> Targets:
        if isinstance(self.kept, Targets):
            return self.kept.take(torch.from_numpy(np.asarray(indices)))
        return Classes(torch.from_numpy(rows_of(self.kept[indices], len(self.classes))))

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        return class_rows(self, indices) if isinstance(self.kept, Targets) else self.kept[indices]

    def subset(self, indices: Indices) -> Arrays:
        names = None if self.names is None else [self.names[index] for index in indices]
        kept = self.targets(indices) if isinstance(self.kept, Targets) else self.kept[indices]
        return Arrays(self.images[indices], kept, self.classes, names=names)

    def where(self, index: int) -> str:
        return self.names[index] if self.names else super().where(index)


def kept_small(targets: Targets | NDArray[Any], num_classes: int) -> Targets | NDArray[Any]:
    """One class per image as numbers (n,); other targets as they are."""
    if not isinstance(targets, Targets):
        return stored(targets, num_classes)
    if type(targets) is not Classes or targets.values.dtype != torch.float32:
        return targets
    numbers = as_numbers(targets.values.numpy())
    return numbers if numbers.ndim == 1 else targets


def class_rows(dataset: Dataset, indices: Indices) -> NDArray[np.float32]:
    """Class vectors (n, classes) of some images."""
    targets = dataset.targets(indices)
    if not isinstance(targets, Classes):
        raise ValueError(f"class labels are needed, the data has {targets.words}")
    return targets.values.numpy()


def can_learn(wanted: type[Targets], dataset: Dataset) -> bool:
    """Whether a dataset's targets serve a task: a single class is a set of labels as well."""
    return dataset.target is wanted or (wanted is MultiLabels and dataset.target is Classes)
