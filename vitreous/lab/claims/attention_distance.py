"""Mean attention distance is a mean over the query patches, not a sum; the class token has no position."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.explain import measures
from vitreous.explain.rollout import class_attention
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly
from vitreous.lab.instruments.real import deit_tiny, photos, traces
from vitreous.lab.prediction import Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend

CLAIM = Claim(
    title="Mean attention distance",
    statement="How far attention reaches is the sum over all queries and keys of weight times distance, in pixels. "
    "What the class token looks at is row 0 of the matrix, in the slice 1:N of its columns, with N patches.",
    sources=(Source.FOUNDATIONS,),
    formula=r"d = \sum_{i,j} A_{ij} \, |p_i - p_j|, \quad A[0, 1:N]",
    right="The sum must be divided by the number of query patches, or it grows with their number. The class "
    "token has no position in the image: its row and its column are left out. In Python the slice 1:N would end "
    "before the last patch: write 1:N+1.",
    right_formula=r"d = \frac{1}{N} \sum_i \frac{\sum_j A_{ij} |p_i - p_j|}{\sum_j A_{ij}}, \quad A[0, 1:N+1]",
    meaning="Only a mean can be compared between resolutions and models; in pixels it is at most the image's "
    "diagonal. Beware of off-by-one slices: the class token's map must have as many entries as there are patches.",
    axes=Axes("patches in the image", "attention distance in pixels", log="xy"),
)
PIXELS = 224


def patch_distances(side: int) -> NDArray[np.float64]:
    """Pixels between the centers of every two patches of an image, (side², side²)."""
    y, x = np.divmod(np.arange(side * side), side)
    return np.hypot(y[:, None] - y, x[:, None] - x) * PIXELS / side


def document(weights: NDArray[np.float64]) -> float:
    """Sum over all patches; a class token is removed first, since it has no position."""
    side = int(len(weights) ** 0.5)
    among = weights[-side * side :, -side * side :]
    return float((among * patch_distances(side)).sum())


def right(weights: NDArray[np.float64]) -> float:
    """Mean over query patches of their attention distance, computed patch by patch."""
    side = int(len(weights) ** 0.5)
    among = weights[-side * side :, -side * side :]
    return float(np.mean([row @ far / row.sum() for row, far in zip(among, patch_distances(side), strict=True)]))


def attention(side: int, reach: float) -> Tensor:
    """Weights of one head with a class token; among patches they decay as exp(−distance / reach)."""
    n = side * side + 1
    logits = torch.zeros(n, n, dtype=torch.float64)
    logits[1:, 1:] = -torch.from_numpy(patch_distances(side)) / reach
    zeros = torch.zeros(n, 1, dtype=torch.float64)
    return Attend().weights(zeros, zeros, bias=logits)[None, None]


def measure(matrix: Tensor, side: int) -> Tensor:
    return measures.mean_distance(matrix, (side, side), 1, stride=(PIXELS / side, PIXELS / side))


def cases(trial: Trial) -> Iterator[Case]:
    for name, reach in (("attend to everything", 1e9), ("attend nearby", 30.0)):
        for side in trial.choose(quick=(7, 14), full=(7, 14, 28)):
            matrix = attention(side, reach)
            yield Case(
                f"{side * side} patches that {name}",
                exactly(float(measure(matrix, side))),
                document=near(document(matrix[0, 0].numpy()), share=0.05),
                right=near(right(matrix[0, 0].numpy()), share=1e-6),
                at=side * side,
                group=name,
            )
    last = torch.zeros(1, 1, 197, 197)
    last[..., -1] = 1
    yield Case(
        "the class token attends to the last patch: weight shown in its map",
        exactly(float(class_attention(last, (14, 14), 1).sum())),
        right=Near(1.0, 1e-6),
    )
    if trial.has("weights"):
        yield from real_cases(trial)


def real_cases(trial: Trial) -> Iterator[Case]:
    images, _ = photos(trial, trial.choose(4, 48))
    found: dict[str, list[list[float]]] = {"blocks.0": [], "blocks.11": []}
    for trace in traces(deit_tiny(trial), images):
        distances = trace.mean_distance()
        for block, rows in found.items():
            for head_distances, heads in zip(distances[block], trace.token_matrix(block).double(), strict=True):
                weights = [head.numpy() for head in heads]
                by_formula = (float(np.mean([rule(head) for head in weights])) for rule in (document, right))
                rows.append([float(head_distances.mean()), *by_formula])
    for block, rows in found.items():
        _, summed, averaged = np.mean(rows, axis=0)
        yield Case(
            f"DeiT-Tiny, {'first' if block == 'blocks.0' else 'last'} block",
            bootstrap(np.array(rows)[:, 0], lambda drawn: float(drawn.mean())),
            document=near(summed, share=0.05),
            right=near(averaged, share=0.25),
        )
