"""Checks of exercise 8."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitreous.explain import measures
from vitreous.lab.exercises.checking import Answer, Wrong, agree, shaped
from vitreous.layers.position import coordinates


def check_entropy_shape(entropy: Answer) -> None:
    """entropy: the shape is (h, n)."""
    mistakes = {
        (2, 5, 5): "sum over the keys, the last axis",
        (2,): "one number for each query is asked for, not one for each head",
        (): "one number for each query is asked for, not one for all",
    }
    shaped(entropy(attention(2, 5)), (2, 5), "(h, n)", mistakes)


def check_entropy_example(entropy: Answer) -> None:
    """entropy: the example of the task comes out."""
    found = entropy(torch.tensor([[[0.5, 0.5, 0.0, 0.0]] * 4]))
    if found.isnan().any():
        raise Wrong("0 · ln 0 became NaN (it is 0 · −∞ in floating point): a weight of 0 must count as 0")
    mistakes = (
        (torch.ones(1, 4), "1 is the entropy in bits (log2): use the natural logarithm"),
        (torch.full((1, 4), -math.log(2)), "the sign is missing: −Σ w ln w is never negative"),
    )
    agree(found, torch.full((1, 4), math.log(2)), "the example does not come out", mistakes)


def check_entropy_axis(entropy: Answer) -> None:
    """entropy: it is summed over keys, for every query."""
    weights = attention(2, 5)
    mistakes = (
        (
            measures.entropy(weights.mT),
            "the sum runs over queries: each row belongs to a query, so sum along the last axis",
        ),
        (measures.entropy(weights) / 5, "this is a mean over keys, not a sum"),
    )
    agree(entropy(weights), measures.entropy(weights), "the entropies differ", mistakes)


def check_entropy_bounds(entropy: Answer) -> None:
    """entropy: one key gives 0, all keys evenly give ln n."""
    agree(entropy(torch.eye(8)[None]), torch.zeros(1, 8), "queries that look at one key have entropy 0")
    even = torch.full((1, 8, 8), 1 / 8)
    agree(entropy(even), torch.full((1, 8), math.log(8)), "queries that look at 8 keys evenly have entropy ln 8")


def check_distance_shape(mean_distance: Answer) -> None:
    """mean_distance: the shape is (h,)."""
    mistakes = {
        (2, 6): "take the mean over queries",
        (): "each head gets a number of its own",
        (2, 6, 6): "sum over keys, then take the mean over queries",
    }
    shaped(mean_distance(attention(2, 7), (2, 3), 1), (2,), "(h,)", mistakes)


def check_distance_example(mean_distance: Answer) -> None:
    """mean_distance: the example of the task comes out."""
    weights = torch.tensor([[[0.0, 0, 1], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]]])
    mistakes = (
        (torch.tensor([3.0]), "3 is the sum over queries: it would grow with the image; take the mean"),
        (torch.tensor([(4 + 0 + 5 / 3) / 3]), "the distances are squared: take the root"),
        (
            torch.tensor([1 / 3]),
            "1/3: divided by the number of all pairs; a row sums to 1 already, so take the mean over queries only",
        ),
    )
    agree(mean_distance(weights, (1, 3), 0), torch.tensor([1.0]), "the example does not come out", mistakes)


def check_distance_grid(mean_distance: Answer) -> None:
    """mean_distance: distances are those of cells on a grid that is not square."""
    weights = attention(2, 15)
    mistakes = (
        (distance(weights, (5, 3), 0), "rows and columns of the grid are swapped: cell 1 lies to the right of cell 0"),
        (distance(weights, (1, 15), 0), "the distance is counted along the sequence, |q − k|: cells lie on a grid"),
        (
            around_the_corner(weights, (3, 5)),
            "the distance is |Δy| + |Δx|: the straight way is the root of the sum of squares",
        ),
    )
    found = mean_distance(weights, (3, 5), 0)
    agree(found, distance(weights, (3, 5), 0), "on a grid of 3 × 5 cells the distances differ", mistakes)


def check_distance_prefix(mean_distance: Answer) -> None:
    """mean_distance: a class token has no place, and rows sum to 1 without it."""
    weights = attention(2, 7)
    cells = weights[:, 1:, 1:]
    mistakes = (
        (
            distance(cells, (2, 3), 0, divide=False),
            "the rows no longer sum to 1 once the class token is left out: divide every row by its sum",
        ),
        (
            distance(weights[:, :6, :6], (2, 3), 0),
            "the last patch was left out, and the class token taken for the first one: cells are tokens num_prefix to "
            "the end",
        ),
    )
    found = mean_distance(weights, (2, 3), 1)
    agree(found, distance(weights, (2, 3), 1), "with a class token the distances differ", mistakes)


def check_distance_heads(mean_distance: Answer) -> None:
    """mean_distance: a head that looks at itself has 0, heads do not mix."""
    even = torch.full((9, 9), 1 / 9)
    found = mean_distance(torch.stack([torch.eye(9), even]), (3, 3), 0)
    agree(found, torch.stack([torch.tensor(0.0), distance(even[None], (3, 3), 0)[0]]), "the heads got mixed")


def attention(heads: int, tokens: int) -> Tensor:
    return (2 * torch.randn(heads, tokens, tokens)).softmax(-1)


def distance(weights: Tensor, grid: tuple[int, int], num_prefix: int, *, divide: bool = True) -> Tensor:
    """The library's; without ``divide`` as it comes out when rows are left as they are."""
    found = measures.mean_distance(weights[None], grid, num_prefix, stride=(1, 1))[0]
    return found if divide else (weights * apart(grid)).sum(-1).mean(-1)


def around_the_corner(weights: Tensor, grid: tuple[int, int]) -> Tensor:
    y, x = coordinates(grid)
    return (weights * ((y[:, None] - y).abs() + (x[:, None] - x).abs())).sum(-1).mean(-1)


def apart(grid: tuple[int, int]) -> Tensor:
    y, x = (axis.float() for axis in coordinates(grid))
    return torch.hypot(y[:, None] - y, x[:, None] - x)
