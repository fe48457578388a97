"""Which images are alike, by their embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 1024  # rows of similarities held at a time


@dataclass(frozen=True)
class Neighbor:
    index: int
    similarity: float


def nearest_neighbors(vectors: NDArray[np.float32], number: int) -> list[list[Neighbor]]:
    """For every vector (of length 1) the most similar others, most similar first."""
    number = min(number, len(vectors) - 1)
    found = []
    for start, similar in chunks(vectors):
        rows = np.arange(len(similar))
        similar[rows, start + rows] = -np.inf  # nobody is their own neighbor
        best = np.argsort(-similar, axis=1, kind="stable")[:, : max(0, number)]
        found += [[Neighbor(int(i), float(row[i])) for i in line] for row, line in zip(similar, best, strict=True)]
    return found


def duplicates(vectors: NDArray[np.float32], threshold: float = 0.98) -> list[tuple[int, int, float]]:
    """Pairs at least as similar as ``threshold``, most similar first."""
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
