"""Position encodings: embeddings added to the tokens, relative position bias, and rotary embedding.

Added embeddings (:class:`Learned`, :class:`LearnedAxes`, :class:`SinCos`) are called as ``position(grid, device)`` and
return one row per prefix token and cell for any grid, so that a model accepts images of any size.
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
    """Resample a table of position embeddings from one grid to another by bicubic interpolation.

    Prefix rows are kept. Both grids are needed, since 8×32 and 16×16 have the same number of rows.

    Args:
        table: Rows for ``num_prefix`` prefix tokens and the cells of ``old_grid``, in raster order.
        old_grid: (rows, columns) that the table was made for.
        new_grid: (rows, columns) to resample to.
        num_prefix: Number of leading rows that belong to prefix tokens.
        antialias: Bicubic with a = −0.5, as in Pillow and timm; turn it off to match implementations with a = −0.75
            (transformers).

    Raises:
        ValueError: The number of rows does not match ``old_grid`` and ``num_prefix``.
    """
    expected = num_prefix + old_grid[0] * old_grid[1]
    if table.shape[1] != expected:
        raise ValueError(
            f"a table for grid {old_grid} with {num_prefix} prefix tokens has {expected} rows, got {table.shape[1]}"
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
    """Compute bicubic resampling of one axis as a matrix, by interpolating the identity.

    Interpolating tables directly is not safe: with ``antialias`` and a target one cell wide, torch 2.15 returns wrong
    numbers on the CPU.
    """
    if old == 1:
        return like.new_ones(new, 1)
    identity = torch.eye(old, dtype=like.dtype, device=like.device)[None, None]
    return F.interpolate(identity, size=(new, old), mode="bicubic", align_corners=False, antialias=antialias)[0, 0]


class Learned(nn.Module):
    """Learned position embedding: one vector per prefix token and cell (ViT)."""

    def __init__(self, grid: Grid, dim: int, num_prefix: int = 0) -> None:
        super().__init__()
        self.grid = grid
        self.num_prefix = num_prefix
        self.table = nn.Parameter(torch.empty(1, num_prefix + grid[0] * grid[1], dim))
        trunc_normal_(self.table, std=0.02)

    def forward(self, grid: Grid, device: torch.device | None = None) -> Float[Tensor, "1 n d"]:
        return resample(self.table, self.grid, grid, self.num_prefix)

    def adapt(self, name: str, table: Tensor, old_grid: Grid) -> Tensor:
        """Resample a checkpoint's table to this module's grid; missing prefix rows become zeros."""
        if self.num_prefix and table.shape[1] == old_grid[0] * old_grid[1]:
            table = torch.cat([table.new_zeros(1, self.num_prefix, table.shape[2]), table], dim=1)
        return resample(table, old_grid, self.grid, self.num_prefix)


class LearnedAxes(nn.Module):
    """Axial learned position embedding, one vector per row plus one per column: E[y, x] = E_row[y] + E_col[x]."""

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

    def adapt(self, name: str, table: Tensor, old_grid: Grid) -> Tensor:
        axis = 0 if name == "rows" else 1
        return resample(table, (old_grid[axis], 1), (self.grid[axis], 1))


class SinCos(nn.Module):
    """Sinusoidal position embedding, PE[p, 2i] = sin(p / T^(2i/d)) and PE[p, 2i+1] = cos(p / T^(2i/d)), T = 10,000.

    With ``axes=1``, p is the index in raster order; with ``axes=2``, half of the channels encode y and half x.
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
    """Relative position bias: a learned bias on the logits per offset (Δy, Δx) and head, added after scaling by 1/√k.

    Prefix tokens have no position; each head has one bias for prefix-to-cell, one for cell-to-prefix and one for
    prefix-to-prefix attention.
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
            raise ValueError("a relative bias needs the whole grid and does not support dropped tokens")
        table = resample(self.table, offsets(self.grid), offsets(grid))[0]
        y, x = coordinates(grid, table.device)
        index = y * (2 * grid[1] - 1) + x  # with the row length of the table, so that differences index the table
        offset = index[:, None] - index + index[-1]
        cells = table.index_select(0, offset.flatten()).unflatten(0, offset.shape)
        if self.prefix is not None:
            n = len(cells)
            to_cell, from_cell, among = self.prefix
            above = torch.cat([among.expand(num_prefix, num_prefix, -1), to_cell.expand(num_prefix, n, -1)], dim=1)
            below = torch.cat([from_cell.expand(n, num_prefix, -1), cells], dim=1)
            cells = torch.cat([above, below])
        return rearrange(cells, "q k h -> h q k")

    def adapt(self, name: str, table: Tensor, old_grid: Grid) -> Tensor:
        return resample(table, offsets(old_grid), offsets(self.grid)) if name == "table" else table


class Rotary(nn.Module):
    """2-D rotary position embedding (RoPE): rotate channel pairs of q and k by y·θ or x·θ.

    q·k then depends on positions only through their offset. θ_i = T^(−i/(k/4)); the first half of the pairs encodes y,
    the second x. Prefix tokens are not rotated.
    """

    def __init__(self, head_dim: int, *, temperature: float = 100.0) -> None:
        super().__init__()
        if head_dim % 4:
            raise ValueError(f"2-D rotary positions need a head width divisible by 4, got {head_dim}")
        self.head_dim = head_dim
        self.temperature = temperature

    def forward(self, x: Float[Tensor, "b h n k"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b h n k"]:
        if grid is None:
            raise ValueError("rotary positions need the whole grid and do not support dropped tokens")
        angle = torch.cat(
            [angles(axis, self.head_dim // 2, self.temperature) for axis in coordinates(grid, x.device)], dim=-1
        )
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        prefix, cells = x[:, :, :num_prefix], x[:, :, num_prefix:]
        even, odd = cells[..., 0::2], cells[..., 1::2]
        rotated = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
        return torch.cat([prefix, rotated], dim=2)


def offsets(grid: Grid) -> Grid:
    """Count the possible offsets Δy and Δx between two cells of a grid."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def coordinates(grid: Grid, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Compute the row and column of every cell, in raster order."""
    y, x = torch.meshgrid(torch.arange(grid[0], device=device), torch.arange(grid[1], device=device), indexing="ij")
    return y.flatten(), x.flatten()


def angles(positions: Tensor, dim: int, temperature: float) -> Float[Tensor, "n half"]:
    """Compute positions · T^(−2i/dim) for i = 0 … dim/2 − 1."""
    rates = temperature ** (-torch.arange(0, dim, 2, device=positions.device) / dim)
    return positions[:, None] * rates


def waves(positions: Tensor, dim: int, temperature: float) -> Float[Tensor, "n d"]:
    angle = angles(positions, dim, temperature)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
