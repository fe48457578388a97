"""Neighborhood attention: every cell attends to the cells around it, optionally dilated.

    N(y, x) = {(y + d·i, x + d·j) : |i|, |j| ≤ r}, clipped to the grid        d is the dilation

Neighborhoods are two-dimensional ("Stand-Alone Self-Attention in Vision Models", Ramachandran et al. 2019, arXiv
1906.05909) and masked before the softmax. Dilation enlarges them at the same cost ("Dilated Neighborhood Attention
Transformer", Hassani and Shi 2022, arXiv 2209.15001).
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
from vitreous.layers.sparse import Groups, Sparse, SparseAttention, outer, outer_positions

#: Largest side of a group of queries: larger groups mask out more keys, smaller ones gather keys more often.
LARGEST_SIDE = 8


class NeighborAttention(SparseAttention):
    """Neighborhood attention; groups are blocks of cells, and their keys the cells in and around the block.

    With dilation d, cells attend only to cells whose row and column are equal modulo d. Such a *phase* of the grid is
    itself a grid, with undilated neighborhoods. Rows and columns are independent.
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
    """Group cells into blocks of at most ``largest_side``² cells, with the cells within ``radius`` steps as keys."""
    rows, columns = (neighbors(length, radius, dilation, largest_side=largest_side, device=device) for length in grid)
    both = rows.mask[:, None, :, None, :, None] & columns.mask[None, :, None, :, None, :]
    return Groups(
        queries=outer(rows.queries, columns.queries, grid[1]),
        keys=outer(rows.keys, columns.keys, grid[1]),
        mask=rearrange(both, "a b i j k l -> (a b) (i j) (k l)"),
        positions=outer_positions(rows.queries, columns.queries)[rows.positions][:, columns.positions].flatten(),
    )


class AxisGroups(NamedTuple):
    """:class:`~vitreous.layers.sparse.Groups` along one axis."""

    queries: Int[Tensor, "a i"]
    keys: Int[Tensor, "a k"]
    mask: Bool[Tensor, "a i k"]
    positions: Int[Tensor, " length"]


def neighbors(length: int, radius: int, dilation: int, *, largest_side: int, device: torch.device) -> AxisGroups:
    """Group the cells along one axis into blocks of each phase; steps within a phase are ``dilation`` cells apart.

    Queries beyond the end of their phase are clamped to its last cell, so that every query has keys. The key range of a
    block is shifted inwards where it would exceed the phase.
    """
    num_phases = min(dilation, length)
    num_steps = -(-length // dilation)  # in the first phase; the others may have one fewer
    num_blocks = -(-num_steps // largest_side)
    side = -(-num_steps // num_blocks)
    span = min(side + 2 * radius, num_steps)

    phase = torch.arange(num_phases, device=device)[:, None, None]
    last = (length - 1 - phase) // dilation
    start = side * torch.arange(num_blocks, device=device)[:, None]
    query = (start + torch.arange(side, device=device)).minimum(last)
    key = (start - radius).clamp(0, num_steps - span) + torch.arange(span, device=device)
    near = (query[..., :, None] - key[..., None, :]).abs() <= radius
    mask = near & (key <= last)[..., None, :]

    cell = torch.arange(length, device=device)
    step = cell // dilation
    return AxisGroups(
        (phase + dilation * query).flatten(0, 1),
        (phase + dilation * key.minimum(last)).flatten(0, 1),
        mask.flatten(0, 1),
        (cell % dilation * num_blocks + step // side) * side + step % side,
    )


@dataclass(frozen=True, kw_only=True)
class Local(Sparse):
    """Options of neighborhood attention: each cell attends to the (2·radius + 1)² cells around it."""

    name: ClassVar[str] = "local"
    radius: int = 3

    def make(self, context: MixerContext) -> NeighborAttention:
        return NeighborAttention(context, self.radius)


@dataclass(frozen=True, kw_only=True)
class Dilated(Sparse):
    """Options of dilated neighborhood attention: (2·radius + 1)² cells around each, ``dilation`` cells apart."""

    name: ClassVar[str] = "dilated"
    radius: int = 3
    dilation: int = 2

    def make(self, context: MixerContext) -> NeighborAttention:
        return NeighborAttention(context, self.radius, self.dilation)
