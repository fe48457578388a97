"""Compact class labels: class vectors are built per batch, never for a whole dataset.

Labels are class indices (n,), tuples of them (n,), or, where neither suffices, class vectors (n, classes). Vectors for
50,000 images of 50,000 classes would fill ten gigabytes; indices fill 400 kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vitreous.data.base import Dataset, Indices

CHUNK = 10_000  # images whose labels are processed at a time
MAX_CHUNK_VALUES = 2**24  # values of class vectors (n, classes) held at a time


def one_hot(labels: Sequence[int] | NDArray[Any], num_classes: int) -> NDArray[np.float32]:
    """Convert class indices to one-hot vectors (n, classes); raise ``ValueError`` for an index out of range."""
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


def normalize_labels(labels: NDArray[Any], num_classes: int) -> NDArray[Any]:
    """Validate labels and convert them to int64 indices, tuples of indices, or float32 vectors."""
    if labels.dtype == object:
        check_labels(positive_pairs(labels)[1], num_classes)
        return labels
    if labels.ndim == 1 and (labels.dtype.kind in "iu" or not len(labels)):
        check_labels(labels, num_classes)
        return labels.astype(np.int64)
    if labels.ndim != 2 or labels.shape[1] != num_classes:
        raise ValueError(
            f"targets of {num_classes} classes must be class indices (n,) or class vectors (n, {num_classes}), "
            f"got {labels.dtype} {labels.shape}"
        )
    return labels.astype(np.float32)


def to_label_sets(sets: Sequence[Sequence[int]]) -> NDArray[Any]:
    """Convert lists of class indices to labels (n,) of sorted tuples without duplicates."""
    labels = np.empty(len(sets), dtype=object)
    for row, numbers in enumerate(sets):
        labels[row] = tuple(sorted(set(numbers)))
    return labels


def to_class_indices(rows: NDArray[Any]) -> NDArray[Any]:
    """Convert class vectors to class indices if all of them are one-hot; otherwise return them unchanged."""
    chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    single = all(((part == 0) | (part == 1)).all() and (part.sum(axis=1) == 1).all() for part in chunks)
    return rows.argmax(axis=1).astype(np.int64) if single and len(rows) else rows


def to_class_vectors(labels: NDArray[Any], num_classes: int) -> NDArray[np.float32]:
    """Convert the labels of a batch to class vectors (n, classes)."""
    if labels.ndim == 2:
        return labels
    rows = np.zeros((len(labels), num_classes), dtype=np.float32)
    rows[positive_pairs(labels)] = 1
    return rows


def positive_pairs(labels: NDArray[Any]) -> tuple[Indices, Indices]:
    """Return (position, class index) of every positive label, i.e. every target above 0.5."""
    if labels.ndim == 2:
        positions, numbers = np.nonzero(labels > 0.5)
        return positions, numbers
    every = np.arange(len(labels))
    if labels.dtype != object:
        return every, labels
    lengths = np.fromiter(map(len, labels), dtype=np.int64, count=len(labels))
    return np.repeat(every, lengths), np.fromiter(chain.from_iterable(labels), dtype=np.int64, count=lengths.sum())


def dataset_positive_pairs(dataset: Dataset) -> tuple[Indices, Indices]:
    """Return (image index, class index) of every positive label of a dataset, ordered by image."""
    images, classes = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for chunk in index_chunks(dataset):
        position, number = positive_pairs(dataset.class_labels(chunk))
        images.append(chunk[position])
        classes.append(number)
    return np.concatenate(images), np.concatenate(classes)


def class_indices(dataset: Dataset) -> Indices:
    """Return the class index of each image: the argmax of its target."""
    found = [np.zeros(0, dtype=np.int64)]
    for chunk in index_chunks(dataset):
        labels = dataset.class_labels(chunk)
        found.append(
            to_class_vectors(labels, len(dataset.classes)).argmax(axis=1) if labels.dtype != np.int64 else labels
        )
    return np.concatenate(found)


def index_chunks(dataset: Dataset) -> Iterator[Indices]:
    """Yield all indices in chunks whose class vectors fit in memory."""
    size = max(1, min(CHUNK, MAX_CHUNK_VALUES // max(1, len(dataset.classes))))
    for start in range(0, len(dataset), size):
        yield np.arange(start, min(start + size, len(dataset)))
