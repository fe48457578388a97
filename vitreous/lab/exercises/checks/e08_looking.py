"""Checks of exercise 8."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitreous.explain import measures
from vitreous.lab.exercises.checking import Answer, CheckFailed, require_close, require_shape
from vitreous.layers.position import coordinates


def check_entropy_shape(entropy: Answer) -> None:
    """entropy: the shape is (h, n)."""
    mistakes = {
        (2, 5, 5): "sum over the keys, the last axis",
        (2,): "return one value per query, not one per head",
        (): "return one value per query, not a single one",
    }
    require_shape(entropy(attention(2, 5)), (2, 5), "(h, n)", mistakes)


def check_entropy_example(entropy: Answer) -> None:
    """entropy: the example of the task is reproduced."""
    found = entropy(torch.tensor([[[0.5, 0.5, 0.0, 0.0]] * 4]))
    if found.isnan().any():
        raise CheckFailed("0 · ln 0 became NaN (it is 0 · −∞ in floating point): a weight of 0 must count as 0")
    mistakes = (
        (torch.ones(1, 4), "1 is the entropy in bits (log2): use the natural logarithm"),
        (torch.full((1, 4), -math.log(2)), "the sign is missing: −Σ w ln w is never negative"),
    )
    require_close(found, torch.full((1, 4), math.log(2)), "the example is not reproduced", mistakes)


def check_entropy_axis(entropy: Answer) -> None:
    """entropy: the sum is over keys, for every query."""
    weights = attention(2, 5)
    mistakes = (
        (
            measures.entropy(weights.mT),
            "the sum runs over queries: each row belongs to a query, so sum along the last axis",
        ),
        (measures.entropy(weights) / 5, "this is a mean over keys, not a sum"),
    )
    require_close(entropy(weights), measures.entropy(weights), "the entropies differ", mistakes)


def check_entropy_bounds(entropy: Answer) -> None:
    """entropy: one key gives 0, uniform attention gives ln n."""
    require_close(entropy(torch.eye(8)[None]), torch.zeros(1, 8), "queries that attend to one key have entropy 0")
    even = torch.full((1, 8, 8), 1 / 8)
    require_close(
        entropy(even), torch.full((1, 8), math.log(8)), "queries that attend to 8 keys uniformly have entropy ln 8"
    )


def check_distance_shape(mean_distance: Answer) -> None:
    """mean_distance: the shape is (h,)."""
    mistakes = {
        (2, 6): "take the mean over queries",
        (): "return one value per head",
        (2, 6, 6): "sum over keys, then take the mean over queries",
    }
    require_shape(mean_distance(attention(2, 7), (2, 3), 1), (2,), "(h,)", mistakes)


def check_distance_example(mean_distance: Answer) -> None:
    """mean_distance: the example of the task is reproduced."""
    weights = torch.tensor([[[0.0, 0, 1], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]]])
    mistakes = (
        (torch.tensor([3.0]), "3 is the sum over queries, which grows with the image; take the mean"),
        (torch.tensor([(4 + 0 + 5 / 3) / 3]), "the distances are squared: take the square root"),
        (
            torch.tensor([1 / 3]),
            "1/3: divided by the number of all pairs; a row sums to 1 already, so take the mean over queries only",
        ),
    )
    require_close(mean_distance(weights, (1, 3), 0), torch.tensor([1.0]), "the example is not reproduced", mistakes)


def check_distance_grid(mean_distance: Answer) -> None:
    """mean_distance: distances are Euclidean, on a non-square grid."""
    weights = attention(2, 15)
    mistakes = (
        (distance(weights, (5, 3), 0), "rows and columns of the grid are swapped: cell 1 lies to the right of cell 0"),
        (distance(weights, (1, 15), 0), "the distance is counted along the sequence, |q − k|: cells lie on a 2-D grid"),
        (
            manhattan_distance(weights, (3, 5)),
            "the distance is |Δy| + |Δx|: the Euclidean one is the square root of the sum of squares",
        ),
    )
    found = mean_distance(weights, (3, 5), 0)
    require_close(found, distance(weights, (3, 5), 0), "on a grid of 3 × 5 cells the distances differ", mistakes)


def check_distance_prefix(mean_distance: Answer) -> None:
    """mean_distance: a class token has no position, and rows sum to 1 without it."""
    weights = attention(2, 7)
    cells = weights[:, 1:, 1:]
    mistakes = (
        (
            distance(cells, (2, 3), 0, divide=False),
            "the rows no longer sum to 1 once the class token is dropped: divide every row by its sum",
        ),
        (
            distance(weights[:, :6, :6], (2, 3), 0),
            "the last patch was left out, and the class token treated as the first one: cells are tokens num_prefix to "
            "the end",
        ),
    )
    found = mean_distance(weights, (2, 3), 1)
    require_close(found, distance(weights, (2, 3), 1), "with a class token the distances differ", mistakes)


def check_distance_heads(mean_distance: Answer) -> None:
    """mean_distance: a head that attends only to itself has 0, and heads are independent."""
    even = torch.full((9, 9), 1 / 9)
    found = mean_distance(torch.stack([torch.eye(9), even]), (3, 3), 0)
    require_close(found, torch.stack([torch.tensor(0.0), distance(even[None], (3, 3), 0)[0]]), "the heads were mixed")


def attention(heads: int, tokens: int) -> Tensor:
    return (2 * torch.randn(heads, tokens, tokens)).softmax(-1)


def distance(weights: Tensor, grid: tuple[int, int], num_prefix: int, *, divide: bool = True) -> Tensor:
    """The library's mean distance; with ``divide=False`` without renormalizing the rows."""
    found = measures.mean_distance(weights[None], grid, num_prefix, stride=(1, 1))[0]
    return found if divide else (weights * cell_distances(grid)).sum(-1).mean(-1)


def manhattan_distance(weights: Tensor, grid: tuple[int, int]) -> Tensor:
    y, x = coordinates(grid)
    return (weights * ((y[:, None] - y).abs() + (x[:, None] - x).abs())).sum(-1).mean(-1)


def cell_distances(grid: tuple[int, int]) -> Tensor:
    y, x = (axis.float() for axis in coordinates(grid))
    return torch.hypot(y[:, None] - y, x[:, None] - x)
