"""Base class for datasets of encoded images, as files or inside tar files, with compact class labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from vitreous.data.base import FileDataset, Indices
from vitreous.data.labels import normalize_labels, to_class_vectors
from vitreous.samples import Classes


class EncodedDataset(FileDataset):
    """A dataset of encoded images with class labels.

    ``labels`` are class indices (n,), tuples of them (n,), or class vectors (n, classes); see ``labels.py``.
    """

    target: type[Classes]

    def __init__(self, labels: NDArray[Any], classes: Sequence[str], *, target: type[Classes] = Classes) -> None:
        self.labels = normalize_labels(labels, len(classes))
        self.classes, self.target = tuple(classes), target

    def __len__(self) -> int:
        return len(self.labels)

    def targets(self, indices: Indices) -> Classes:
        kind: type[Classes] = self.target
        return kind(torch.from_numpy(to_class_vectors(self.labels[indices], len(self.classes))))

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        return self.labels[indices]

    @abstractmethod
    def content(self, index: int) -> bytes:
        """Return the encoded bytes of an image."""
