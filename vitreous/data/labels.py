"""Class labels kept small: rows of targets are made for a batch, and never for a whole dataset.

Labels are class numbers (n,), sets of them (n,) as tuples, or, where neither says it all, rows of targets (n, classes).
A row for each of 50,000 images of 50,000 classes would fill ten gigabytes; numbers fill 400 kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vitreous.data.base import Dataset, Indices

CHUNK = 10_000  # images whose labels are looked at together
CELLS = 2**24  # of rows (n, classes) that are looked at together


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


def stored(labels: NDArray[Any], num_classes: int) -> NDArray[Any]:
    """Labels as a dataset keeps them, checked."""
    if labels.dtype == object:
        check_labels(shown_by(labels)[1], num_classes)
        return labels
    if labels.ndim == 1 and (labels.dtype.kind in "iu" or not len(labels)):
        check_labels(labels, num_classes)
        return labels.astype(np.int64)
    if labels.ndim != 2 or labels.shape[1] != num_classes:
        raise ValueError(
            f"targets of {num_classes} classes must be whole numbers (n,) or rows (n, classes), "
            f"got {labels.dtype} {labels.shape}"
        )
    return labels.astype(np.float32)


def sets_of(sets: Sequence[Sequence[int]]) -> NDArray[Any]:
    """Sets of class numbers as labels (n,), each one in order and without repetition."""
    labels = np.empty(len(sets), dtype=object)
    for row, numbers in enumerate(sets):
        labels[row] = tuple(sorted(set(numbers)))
    return labels


def as_numbers(rows: NDArray[Any]) -> NDArray[Any]:
    """Class numbers for rows that are one-hot, every one of them; other rows as they are."""
    chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    single = all(((part == 0) | (part == 1)).all() and (part.sum(axis=1) == 1).all() for part in chunks)
    return rows.argmax(axis=1).astype(np.int64) if single and len(rows) else rows


def rows_of(labels: NDArray[Any], num_classes: int) -> NDArray[np.float32]:
    """Rows of targets (n, classes), for as many images as a batch has."""
    if labels.ndim == 2:
        return labels
    rows = np.zeros((len(labels), num_classes), dtype=np.float32)
    rows[shown_by(labels)] = 1
    return rows


def shown_by(labels: NDArray[Any]) -> tuple[Indices, Indices]:
    """Pairs of (position, class) for every class that is shown: a target above one half."""
    if labels.ndim == 2:
        positions, numbers = np.nonzero(labels > 0.5)
        return positions, numbers
    every = np.arange(len(labels))
    if labels.dtype != object:
        return every, labels
    lengths = np.fromiter(map(len, labels), dtype=np.int64, count=len(labels))
    return np.repeat(every, lengths), np.fromiter(chain.from_iterable(labels), dtype=np.int64, count=lengths.sum())


def shown(dataset: Dataset) -> tuple[Indices, Indices]:
    """Pairs of (image, class) for every class that an image shows, by image."""
    images, classes = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for chunk in chunks_of(dataset):
        position, number = shown_by(dataset.class_labels(chunk))
        images.append(chunk[position])
        classes.append(number)
    return np.concatenate(images), np.concatenate(classes)


def labels_of(dataset: Dataset) -> Indices:
    """The class of each image: the one with the largest target."""
    found = [np.zeros(0, dtype=np.int64)]
    for chunk in chunks_of(dataset):
        labels = dataset.class_labels(chunk)
        found.append(rows_of(labels, len(dataset.classes)).argmax(axis=1) if labels.dtype != np.int64 else labels)
    return np.concatenate(found)


def chunks_of(dataset: Dataset) -> Iterator[Indices]:
    """All indices in parts so small that even their rows of targets fit into memory."""
    size = max(1, min(CHUNK, CELLS // max(1, len(dataset.classes))))
    for start in range(0, len(dataset), size):
        yield np.arange(start, min(start + size, len(dataset)))
