"""Images that lie encoded somewhere, as files or inside of tar files, with their class labels kept small."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.base import FileDataset, Indices, check_labels, one_hot
from vitreous.samples import Classes


class Encoded(FileDataset):
    """``labels`` are class numbers (n,) or, where a number does not say it all, rows of targets (n, classes).

    A row for each of ImageNet's images would fill five gigabytes; numbers fill ten megabytes.
    """

    target: type[Classes]

    def __init__(self, labels: NDArray[Any], classes: Sequence[str], *, target: type[Classes] = Classes) -> None:
        if labels.ndim == 1:
            check_labels(labels, len(classes))
        elif labels.ndim != 2 or labels.shape[1] != len(classes):
            raise ValueError(f"targets of {len(classes)} classes must be (n,) or (n, classes), got {labels.shape}")
        self.labels = labels.astype(np.int64 if labels.ndim == 1 else np.float32)
        self.classes, self.target = tuple(classes), target

    def __len__(self) -> int:
        return len(self.labels)

    def targets(self, indices: Indices) -> Classes:
        own: NDArray[Any] = self.labels[indices]
        rows = one_hot(own, len(self.classes)) if own.ndim == 1 else own
        kind: type[Classes] = self.target
        return kind(torch.from_numpy(rows))

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The file as it is, not decoded."""
