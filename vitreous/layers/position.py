"""Where a token sits: tables added to the tokens, a bias on the logits, or a rotation of queries and keys.

Tables (:class:`Learned`, :class:`LearnedAxes`, :class:`SinCos`) answer ``position(grid, device)`` with a row for
each of their prefix tokens and each cell of any grid, so that a model takes images of any size.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.init import trunc_normal_

Grid = tuple[int, int]


def resample(
    table: Float[Tensor, "b n d"], old_grid: Grid, new_grid: Grid, num_prefix: int = 0, *, antialias: bool = True
) -> Float[Tensor, "b m d"]:
    """A table of positions for ``old_grid`` turned into one for ``new_grid``; prefix rows are kept as they are.

    Both grids are given, because a count cannot tell 8×32 from 16×16. ``antialias`` (bicubic with a = −0.5, as in
    Pillow and timm) can be turned off to match implementations that use a = −0.75 (transformers).
    """
    expected = num_prefix + old_grid[0] * old_grid[1]
    if table.shape[1] != expected:
        raise ValueError(
            f"a table for grid {old_grid} and {num_prefix} prefix tokens has {expected} rows, got {table.shape[1]}"
        )
    if old_grid == new_grid:
        return table
    prefix, cells = table[:, :num_prefix], table[:, num_prefix:]
    precise = rearrange(cells, "b (y x) d -> b y x d", y=old_grid[0])
    precise = precise.to(torch.promote_types(table.dtype, torch.float32))
    rows, columns = (
        resampling_matrix(old, new, antialias, precise) for old, new in zip(old_grid, new_grid, strict=True)
    )
    precise = torch.einsum("vy, byxd -> bvxd", rows, precise)
    precise = torch.einsum("wx, bvxd -> bvwd", columns, precise)
    return torch.cat([prefix, rearrange(precise, "b y x d -> b (y x) d").to(table.dtype)], dim=1)


def resampling_matrix(old: int, new: int, antialias: bool, like: Tensor) -> Float[Tensor, "new old"]:
    """Bicubic resampling of one axis as the matrix that it is.

    Torch gives it through the rows of an identity. Interpolating tables directly is not safe: with ``antialias``
    and a target one cell wide, torch 2.15 returns wrong numbers on the CPU.
    """
    if old == 1:
        return like.new_ones(new, 1)
    identity = torch.eye(old, dtype=like.dtype, device=like.device)[None, None]
    return F.interpolate(identity, size=(new, old), mode="bicubic", align_corners=False, antialias=antialias)[0, 0]


class Learned(nn.Module):
    """One learned vector per prefix token and grid cell (ViT)."""

    def __init__(self, grid: Grid, dim: int, num_prefix: int = 0) -> None:
        super().__init__()
        self.grid = grid
        self.num_prefix = num_prefix
        self.table = nn.Parameter(torch.empty(1, num_prefix + grid[0] * grid[1], dim))
        trunc_normal_(self.table, std=0.02)

    def forward(self, grid: Grid, device: torch.device | None = None) -> Float[Tensor, "1 n d"]:
        return resample(self.table, self.grid, grid, self.num_prefix)

    def adapt(self, name: str, given: Tensor, old_grid: Grid) -> Tensor:
        """A table made for ``old_grid`` as this module wants it; one without prefix rows gets zeros there."""
        if self.num_prefix and given.shape[1] == old_grid[0] * old_grid[1]:
            given = torch.cat([given.new_zeros(1, self.num_prefix, given.shape[2]), given], dim=1)
        return resample(given, old_grid, self.grid, self.num_prefix)


class LearnedAxes(nn.Module):
    """A learned vector per row plus one per column: E[y, x] = E_row[y] + E_col[x]."""

    num_prefix = 0

    def __init__(self, grid: Grid, dim: int) -> None:
        super().__init__()
        self.grid = grid
        self.rows = nn.Parameter(torch.empty(1, grid[0], dim))
        self.columns = nn.Parameter(torch.empty(1, grid[1], dim))
        trunc_normal_(self.rows, std=0.02)
        trunc_normal_(self.columns, std=0.02)

    def forward(self, grid: Grid, device: torch.device | None = None) -> Float[Tensor, "1 n d"]:
        rows = resample(self.rows, (self.grid[0], 1), (grid[0], 1))
        columns = resample(self.columns, (1, self.grid[1]), (1, grid[1]))
        return rearrange(rows[:, :, None] + columns[:, None], "b y x d -> b (y x) d")

    def adapt(self, name: str, given: Tensor, old_grid: Grid) -> Tensor:
        axis = 0 if name == "rows" else 1
        return resample(given, (old_grid[axis], 1), (self.grid[axis], 1))


class SinCos(nn.Module):
    """Fixed waves, PE[p, 2i] = sin(p / T^(2i/d)) and PE[p, 2i+1] = cos(p / T^(2i/d)), T = 10,000.

    With one axis p counts the cells in raster order; with two, half of the channels encode y and half x.
    """

    num_prefix = 0

    def __init__(self, dim: int, *, axes: Literal[1, 2] = 2, temperature: float = 10_000.0) -> None:
        super().__init__()
        if dim % (2 * axes):
            raise ValueError(f"sin-cos positions over {axes} axes need a dim divisible by {2 * axes}, got {dim}")
        self.dim = dim
        self.axes = axes
        self.temperature = temperature

    def forward(self, grid: Grid, device: torch.device | None = None) -> Float[Tensor, "1 n d"]:
        if self.axes == 1:
            table = waves(torch.arange(grid[0] * grid[1], device=device), self.dim, self.temperature)
        else:
            y, x = coordinates(grid, device)
            table = torch.cat([waves(axis, self.dim // 2, self.temperature) for axis in (y, x)], dim=-1)
        return table[None]


class RelativeBias(nn.Module):
    """A learned bias on the logits for every offset (Δy, Δx) and head, added after the scaling by 1/√k.

    Prefix tokens have no place on the grid: they share one bias each for looking at cells, being looked at by
    cells, and looking at each other.
    """

    def __init__(self, grid: Grid, num_heads: int, num_prefix: int = 0) -> None:
        super().__init__()
        self.grid = grid
        rows, columns = offsets(grid)
        self.table = nn.Parameter(torch.empty(1, rows * columns, num_heads))
        self.prefix = nn.Parameter(torch.empty(3, num_heads)) if num_prefix else None
        trunc_normal_(self.table, std=0.02)
        if self.prefix is not None:
            trunc_normal_(self.prefix, std=0.02)

    def forward(self, grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "h n n"]:
        if grid is None:
            raise ValueError("a relative bias needs the whole grid: it does not work with dropped tokens")
        table = resample(self.table, offsets(self.grid), offsets(grid))[0]
        y, x = coordinates(grid, table.device)
        place = y * (2 * grid[1] - 1) + x  # numbered as if rows were as long as the table's, so that offsets subtract
        row = place[:, None] - place + place[-1]
        cells = table.index_select(0, row.flatten()).unflatten(0, row.shape)
        if self.prefix is not None:
            n = len(cells)
            to_cell, from_cell, among = self.prefix
            above = torch.cat([among.expand(num_prefix, num_prefix, -1), to_cell.expand(num_prefix, n, -1)], dim=1)
            below = torch.cat([from_cell.expand(n, num_prefix, -1), cells], dim=1)
            cells = torch.cat([above, below])
        return rearrange(cells, "q k h -> h q k")

    def adapt(self, name: str, given: Tensor, old_grid: Grid) -> Tensor:
        return resample(given, offsets(old_grid), offsets(self.grid)) if name == "table" else given


class Rotary(nn.Module):
    """2-D rotary positions: each pair of channels of q and k turns by y·θ or x·θ, so q·k sees only the offset.

    θ_i = T^(−i/(k/4)); the first half of the pairs follows y, the second x. Prefix tokens are not turned.
    """

    def __init__(self, head_dim: int, *, temperature: float = 100.0) -> None:
        super().__init__()
        if head_dim % 4:
            raise ValueError(f"2-D rotary positions need a head width divisible by 4, got {head_dim}")
        self.head_dim = head_dim
        self.temperature = temperature

    def forward(self, x: Float[Tensor, "b h n k"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b h n k"]:
        if grid is None:
            raise ValueError("rotary positions need the whole grid: they do not work with dropped tokens")
        angle = torch.cat(
            [angles(axis, self.head_dim // 2, self.temperature) for axis in coordinates(grid, x.device)], dim=-1
        )
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        prefix, cells = x[:, :, :num_prefix], x[:, :, num_prefix:]
        even, odd = cells[..., 0::2], cells[..., 1::2]
        turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
        return torch.cat([prefix, turned], dim=2)


def offsets(grid: Grid) -> Grid:
    """How many different (Δy, Δx) two cells of a grid can have."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def coordinates(grid: Grid, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Row and column of every cell, in raster order."""
    y, x = torch.meshgrid(torch.arange(grid[0], device=device), torch.arange(grid[1], device=device), indexing="ij")
    return y.flatten(), x.flatten()


def angles(positions: Tensor, dim: int, temperature: float) -> Float[Tensor, "n half"]:
    """positions · T^(−2i/dim) for i = 0 … dim/2 − 1."""
    rates = temperature ** (-torch.arange(0, dim, 2, device=positions.device) / dim)
    return positions[:, None] * rates


def waves(positions: Tensor, dim: int, temperature: float) -> Float[Tensor, "n d"]:
    angle = angles(positions, dim, temperature)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
