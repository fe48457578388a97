"""Nearest neighbors and near-duplicates among image embeddings, by cosine similarity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 1024  # rows of the similarity matrix in memory at a time


@dataclass(frozen=True)
class Neighbor:
    index: int
    similarity: float


def nearest_neighbors(vectors: NDArray[np.float32], number: int) -> list[list[Neighbor]]:
    """Return the ``number`` most similar other vectors for each row of unit vectors, most similar first."""
    number = min(number, len(vectors) - 1)
    found = []
    for start, similar in chunks(vectors):
        rows = np.arange(len(similar))
        similar[rows, start + rows] = -np.inf  # a vector is not its own neighbor
        best = np.argsort(-similar, axis=1, kind="stable")[:, : max(0, number)]
        found += [[Neighbor(int(i), float(row[i])) for i in line] for row, line in zip(similar, best, strict=True)]
    return found


def duplicates(vectors: NDArray[np.float32], threshold: float = 0.98) -> list[tuple[int, int, float]]:
    """Return the pairs (i, j, similarity) with i < j and at least ``threshold``, most similar first."""
    pairs = []
    for start, similar in chunks(vectors):
        rows, columns = np.nonzero(similar >= threshold)
        later = columns > rows + start
        chosen = zip(rows[later], columns[later], strict=True)
        pairs += [(int(start + row), int(column), float(similar[row, column])) for row, column in chosen]
    return sorted(pairs, key=lambda pair: -pair[2])


def chunks(vectors: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    starts = range(0, len(vectors), CHUNK)
    yield from ((start, vectors[start : start + CHUNK] @ vectors.T) for start in starts)
