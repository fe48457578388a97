"""Pictures that lie encoded somewhere, as files or inside of tar files, with their targets kept small."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Indices, Pictures, check_labels, one_hot


class Encoded(Pictures):
    """``labels`` are class numbers (n,) or, where a number does not say it all, rows of targets (n, classes).

    A row for each of ImageNet's pictures would fill five gigabytes; numbers fill ten megabytes.
    """

    def __init__(self, labels: NDArray[Any], classes: Sequence[str], *, multi_label: bool = False) -> None:
        if labels.ndim == 1:
            check_labels(labels, len(classes))
        elif labels.ndim != 2 or labels.shape[1] != len(classes):
            raise ValueError(f"targets of {len(classes)} classes must be (n,) or (n, classes), got {labels.shape}")
        self.labels = labels.astype(np.int64 if labels.ndim == 1 else np.float32)
        self.classes, self.multi_label = tuple(classes), multi_label

    def __len__(self) -> int:
        return len(self.labels)

    def targets(self, indices: Indices) -> NDArray[np.float32]:
        own: NDArray[Any] = self.labels[indices]
        return one_hot(own, len(self.classes)) if own.ndim == 1 else own

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The file as it is, not decoded."""
