"""Dataset interfaces: images and targets by index.

An :class:`ArrayDataset` stores uint8 images of one size, so that a whole batch is cropped and augmented at once. A
:class:`FileDataset` opens images of any size one by one. Both return targets of one type (``samples.py``) in the pixel
coordinates of the original image: class vectors, multi-label vectors, masks, boxes or captions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.labels import check_labels, normalize_labels, one_hot, to_class_indices, to_class_vectors
from vitreous.samples import Classes, MultiLabels, Targets
from vitreous.spec import Size

__all__ = [
    "ArrayDataset",
    "Arrays",
    "Dataset",
    "FileDataset",
    "check_labels",
    "class_vectors",
    "one_hot",
    "provides_target",
]

Indices = NDArray[np.int64]
Views = tuple[Image.Image, ...]  # several views of one scene


class Dataset(ABC):
    """A map-style dataset of images with targets.

    Subclass :class:`ArrayDataset` or :class:`FileDataset` rather than this class, set ``classes`` and ``target``, and
    implement ``__len__``, :meth:`targets` and :meth:`subset`. All index arguments are int64 arrays.

    Attributes:
        classes: Class names, in the order of the class indices.
        target: Type of the targets, e.g. ``vt.Classes`` (default) or ``vt.Masks``.
        num_views: Images per item; more than 1 for multi-view scenes.
    """

    classes: tuple[str, ...]
    target: type[Targets] = Classes
    num_views: int = 1

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def targets(self, indices: Indices) -> Targets:
        """Return the targets of these images, one entry per image.

        Masks are stacked, so request them one image at a time where image sizes differ.
        """

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        """Return class labels in compact form (``labels.py``): class indices, sets of them, or class vectors."""
        return class_vectors(self, indices)

    @abstractmethod
    def subset(self, indices: Indices) -> Dataset:
        """Return a dataset of only these images, in this order."""

    def order(self, seed: int, epoch: int) -> Indices:
        """Return the permutation of an epoch: a pure function of its arguments, identical on every machine."""
        return np.random.default_rng([seed, epoch]).permutation(len(self))

    def location(self, index: int) -> str:
        """Describe where an image comes from, e.g. its path; used in messages, reports and fingerprints."""
        return f"image {index}"

    def cameras(self, index: int) -> NDArray[np.float32] | None:
        """Return the projection matrices (v, 3, 4) of a scene's views, or None if they are unknown."""
        return None


class ArrayDataset(Dataset):
    """A dataset of uint8 images of one size.

    Attributes:
        image_size: (height, width) of every image.
        num_channels: Channels of every image, usually 1 or 3.
    """

    image_size: Size
    num_channels: int

    @abstractmethod
    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        """Return uint8 images (b, c, y, x)."""

    def samples(self, indices: Indices) -> tuple[NDArray[np.uint8], Targets]:
        """Return pixels and targets together; override where both are generated in one pass."""
        return self.pixels(indices), self.targets(indices)


class FileDataset(Dataset):
    """A dataset of images of any size, opened one by one.

    >>> class Photos(vt.FileDataset):
    ...     classes = ("cat", "dog")
    ...     def __len__(self): return len(self.paths)
    ...     def image(self, index): return Image.open(self.paths[index]).convert("RGB")
    ...     def targets(self, indices): return vt.Classes(torch.eye(2)[self.labels[indices]])
    ...     def subset(self, indices): return Photos(self.paths[indices], self.labels[indices])
    """

    @abstractmethod
    def subset(self, indices: Indices) -> FileDataset: ...

    @abstractmethod
    def image(self, index: int) -> Image.Image | Views:
        """Open an image as upright 8-bit RGB or grayscale, or the views of a scene.

        Raises:
            BadImage: The image cannot be read.
        """


class Arrays(ArrayDataset):
    """A dataset held in memory as arrays.

    Args:
        images: uint8 images (n, c, y, x).
        targets: A :class:`Targets` batch of n, class indices (n,), or class vectors (n, k). One-hot class vectors are
            stored as class indices.
        classes: Class names.
        names: A name per image for messages; by default ``image 0``, ``image 1`` …

    Raises:
        ValueError: Images are not uint8 (n, c, y, x), or the targets do not match them.

    >>> data = vt.Arrays(np.zeros((100, 3, 32, 32), np.uint8), np.arange(100) % 2, ["cat", "dog"])
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
            raise ValueError(f"images must be uint8 of shape (n, c, y, x), got {images.dtype} {images.shape}")
        self.num_channels, self.image_size = images.shape[1], (images.shape[2], images.shape[3])
        if len(targets) != len(images):
            raise ValueError(f"expected one target per image, got {len(targets)} targets for {len(images)} images")
        if not isinstance(targets, Targets) and targets.ndim != 1:
            targets = Classes(torch.from_numpy(targets.astype(np.float32)))
        if isinstance(targets, Targets):
            targets.check([self.image_size] * len(images), len(classes))
        self.target = type(targets) if isinstance(targets, Targets) else Classes
        self.images, self.stored = images, compact_targets(targets, len(classes))
        self.classes, self.names = tuple(classes), names

    @property
    def all_targets(self) -> Targets:
        return self.targets(np.arange(len(self)))

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        return self.images[indices]

    def targets(self, indices: Indices) -> Targets:
        if isinstance(self.stored, Targets):
            return self.stored.take(torch.from_numpy(np.asarray(indices)))
        return Classes(torch.from_numpy(to_class_vectors(self.stored[indices], len(self.classes))))

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        return class_vectors(self, indices) if isinstance(self.stored, Targets) else self.stored[indices]

    def subset(self, indices: Indices) -> Arrays:
        names = None if self.names is None else [self.names[index] for index in indices]
        stored = self.targets(indices) if isinstance(self.stored, Targets) else self.stored[indices]
        return Arrays(self.images[indices], stored, self.classes, names=names)

    def location(self, index: int) -> str:
        return self.names[index] if self.names else super().location(index)


def compact_targets(targets: Targets | NDArray[Any], num_classes: int) -> Targets | NDArray[Any]:
    """Convert one-hot classes to class indices (n,); return other targets unchanged."""
    if not isinstance(targets, Targets):
        return normalize_labels(targets, num_classes)
    if type(targets) is not Classes or targets.values.dtype != torch.float32:
        return targets
    labels = to_class_indices(targets.values.numpy())
    return labels if labels.ndim == 1 else targets


def class_vectors(dataset: Dataset, indices: Indices) -> NDArray[np.float32]:
    """Return the class vectors (n, classes) of these images."""
    targets = dataset.targets(indices)
    if not isinstance(targets, Classes):
        raise ValueError(f"expected class labels, the dataset has {targets.description}")
    return targets.values.numpy()


def provides_target(wanted: type[Targets], dataset: Dataset) -> bool:
    """Return whether a dataset provides the wanted targets; single classes also serve as multi-label targets."""
    return dataset.target is wanted or (wanted is MultiLabels and dataset.target is Classes)
