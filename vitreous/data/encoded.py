"""Images that lie encoded somewhere, as files or inside of tar files, with their class labels kept small."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from vitreous.data.base import FileDataset, Indices
from vitreous.data.labels import rows_of, stored
from vitreous.samples import Classes


class Encoded(FileDataset):
    """``labels`` are class numbers (n,), sets of them, or rows of targets (n, classes): see ``labels.py``."""

    target: type[Classes]

    def __init__(self, labels: NDArray[Any], classes: Sequence[str], *, target: type[Classes] = Classes) -> None:
        self.labels = stored(labels, len(classes))
        self.classes, self.target = tuple(classes), target

    def __len__(self) -> int:
        return len(self.labels)

    def targets(self, indices: Indices) -> Classes:
        kind: type[Classes] = self.target
        return kind(torch.from_numpy(rows_of(self.labels[indices], len(self.classes))))

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        return self.labels[indices]

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The file as it is, not decoded."""
