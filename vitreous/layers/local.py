"""Local attention: every cell looks at the cells around it, side by side or some steps apart.

    N(y, x) = {(y + d·i, x + d·j) : |i|, |j| ≤ r}, as far as the grid reaches        d the dilation, 1 for local

Neighborhoods have two dimensions ("Stand-Alone Self-Attention in Vision Models", Ramachandran et al. 2019, arXiv
1906.05909), and what lies outside is left out before the softmax. Dilated ones reach further at the same cost ("Dilated
Neighborhood Attention Transformer", Hassani and Shi 2022, arXiv 2209.15001).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import Grid
from vitreous.layers.sparse import Groups, Sparse, SparseAttention, outer, outer_places

#: Side of a group of queries, at most: larger ones look at more keys in vain, smaller ones gather keys more often.
LARGEST_SIDE = 8


class NeighborAttention(SparseAttention):
    """Groups are blocks of cells, and their keys the cells around them.

    With dilation d a cell meets only cells whose row and column leave the same remainders when divided by d. Such a
    *phase* of the grid is a grid of its own with plain neighborhoods. All of this holds for rows and columns apart.
    """

    def __init__(self, context: MixerContext, radius: int, dilation: int = 1) -> None:
        super().__init__(context)
        self.radius = radius
        self.dilation = dilation

    def groups(self, grid: Grid, device: torch.device) -> Groups:
        return neighborhoods(grid, self.radius, self.dilation, largest_side=LARGEST_SIDE, device=device)

    def extra_repr(self) -> str:
        return f"radius={self.radius}, dilation={self.dilation}"


def neighborhoods(grid: Grid, radius: int, dilation: int = 1, *, largest_side: int, device: torch.device) -> Groups:
    """Blocks of at most ``largest_side``² cells, and the cells within ``radius`` steps of them."""
    rows, columns = (neighbors(length, radius, dilation, largest_side=largest_side, device=device) for length in grid)
    both = rows.seen[:, None, :, None, :, None] & columns.seen[None, :, None, :, None, :]
    return Groups(
        queries=outer(rows.queries, columns.queries, grid[1]),
        keys=outer(rows.keys, columns.keys, grid[1]),
        seen=rearrange(both, "a b i j k l -> (a b) (i j) (k l)"),
        homes=outer_places(rows.queries, columns.queries)[rows.homes][:, columns.homes].flatten(),
    )


class Line(NamedTuple):
    """The same along one axis."""

    queries: Int[Tensor, "a i"]
    keys: Int[Tensor, "a k"]
    seen: Bool[Tensor, "a i k"]
    homes: Int[Tensor, " length"]


def neighbors(length: int, radius: int, dilation: int, *, largest_side: int, device: torch.device) -> Line:
    """Blocks of each phase with the steps around them; inside a phase cells are counted in steps of ``dilation``.

    A query beyond the end of its phase becomes the phase's last cell, so that every query sees something. A block's
    keys are moved inside where they would begin before or end after the phase.
    """
    num_phases = min(dilation, length)
    num_steps = -(-length // dilation)  # of the first phase; the others may have one less
    num_blocks = -(-num_steps // largest_side)
    side = -(-num_steps // num_blocks)
    span = min(side + 2 * radius, num_steps)

    phase = torch.arange(num_phases, device=device)[:, None, None]
    last = (length - 1 - phase) // dilation
    start = side * torch.arange(num_blocks, device=device)[:, None]
    query = (start + torch.arange(side, device=device)).minimum(last)
    key = (start - radius).clamp(0, num_steps - span) + torch.arange(span, device=device)
    near = (query[..., :, None] - key[..., None, :]).abs() <= radius
    seen = near & (key <= last)[..., None, :]

    cell = torch.arange(length, device=device)
    step = cell // dilation
    return Line(
        (phase + dilation * query).flatten(0, 1),
        (phase + dilation * key.minimum(last)).flatten(0, 1),
        seen.flatten(0, 1),
        (cell % dilation * num_blocks + step // side) * side + step % side,
    )


@dataclass(frozen=True, kw_only=True)
class Local(Sparse):
    """Every cell looks at the (2·radius + 1)² cells around it."""

    name: ClassVar[str] = "local"
    radius: int = 3

    def make(self, context: MixerContext) -> NeighborAttention:
        return NeighborAttention(context, self.radius)


@dataclass(frozen=True, kw_only=True)
class Dilated(Sparse):
    """Every cell looks at (2·radius + 1)² cells around it, ``dilation`` cells apart."""

    name: ClassVar[str] = "dilated"
    radius: int = 3
    dilation: int = 2

    def make(self, context: MixerContext) -> NeighborAttention:
        return NeighborAttention(context, self.radius, self.dilation)
