"""Mean attention distance: a mean over the patches that look, not a sum; and the class token has no place."""

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
    right="The sum must be divided by the number of patches that look, or it grows with their number. The class token "
    "has no place in the image: its row and its column stay out. In Python the slice 1:N would end before the "
    "last patch: write 1:N+1.",
    right_formula=r"d = \frac{1}{N} \sum_i \frac{\sum_j A_{ij} |p_i - p_j|}{\sum_j A_{ij}}, \quad A[0, 1:N+1]",
    meaning="Only a mean can be compared between resolutions and models: in pixels, at most the image's diagonal. "
    "Beware of off-by-one slices: the class token's map must have as many entries as there are patches.",
    axes=Axes("patches in the image", "attention distance in pixels", log="xy"),
)
PIXELS = 224


def places(side: int) -> NDArray[np.float64]:
    """(side², side²): pixels between the patches of an image."""
    y, x = np.divmod(np.arange(side * side), side)
    return np.hypot(y[:, None] - y, x[:, None] - x) * PIXELS / side


def document(weights: NDArray[np.float64]) -> float:
    """Σ over all patches; the class token, if any, is taken out first, since it has no place."""
    side = int(len(weights) ** 0.5)
    among = weights[-side * side :, -side * side :]
    return float((among * places(side)).sum())


def right(weights: NDArray[np.float64]) -> float:
    """The mean over patches of how far each looks, patch by patch."""
    side = int(len(weights) ** 0.5)
    among = weights[-side * side :, -side * side :]
    return float(np.mean([row @ far / row.sum() for row, far in zip(among, places(side), strict=True)]))


def attention(side: int, reach: float) -> Tensor:
    """Of one head with a class token: patches look at each other the less the farther they are, in units of reach."""
    n = side * side + 1
    logits = torch.zeros(n, n, dtype=torch.float64)
    logits[1:, 1:] = -torch.from_numpy(places(side)) / reach
    nothing = torch.zeros(n, 1, dtype=torch.float64)
    return Attend().weights(nothing, nothing, bias=logits)[None, None]


def measure(whole: Tensor, side: int) -> Tensor:
    return measures.mean_distance(whole, (side, side), 1, stride=(PIXELS / side, PIXELS / side))


def cases(trial: Trial) -> Iterator[Case]:
    for name, reach in (("look at everything", 1e9), ("look nearby", 30.0)):
        for side in trial.choose(quick=(7, 14), full=(7, 14, 28)):
            whole = attention(side, reach)
            yield Case(
                f"{side * side} patches that {name}",
                exactly(float(measure(whole, side))),
                document=near(document(whole[0, 0].numpy()), share=0.05),
                right=near(right(whole[0, 0].numpy()), share=1e-6),
                at=side * side,
                group=name,
            )
    last = torch.zeros(1, 1, 197, 197)
    last[..., -1] = 1
    yield Case(
        "the class token looks at the last patch: what its map shows of that",
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
            for own, heads in zip(distances[block], trace.whole_of(block).double(), strict=True):
                weights = [head.numpy() for head in heads]
                both = (float(np.mean([rule(head) for head in weights])) for rule in (document, right))
                rows.append([float(own.mean()), *both])
    for block, rows in found.items():
        _, summed, averaged = np.mean(rows, axis=0)
        yield Case(
            f"DeiT-Tiny, {'first' if block == 'blocks.0' else 'last'} block",
            bootstrap(np.array(rows)[:, 0], lambda drawn: float(drawn.mean())),
            document=near(summed, share=0.05),
            right=near(averaged, share=0.25),
        )
