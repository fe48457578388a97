"""Shifted-window attention (Swin): self-attention within windows, at a cost linear in the number of cells.

"Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", Liu et al. 2021 (arXiv 2103.14030).

    weights = softmax(q kᵀ / √k + bias[Δy, Δx])        over the cells of one window        output = weights v

The grid is partitioned into windows of ``size`` × ``size`` cells. In every second block the windows are shifted by half
their side, which connects neighboring windows. As in the paper the map is rolled rather than the partition, which keeps
the number of windows; a mask separates cells that are adjacent only because of the roll.

Maps of any size are padded below and on the right. Where we differ from the published code: padding is masked, so that
it does not affect any cell, and along an axis where the map is no larger than the window, the window is the map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitreous.layers.attention import Attend
from vitreous.layers.layout import CellGroups, Grouped, Layout
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid, RelativeBias
from vitreous.layers.tokens import Tokens


class WindowPartition(NamedTuple):
    """Partition of a grid into windows, shifted down and to the right by ``shift`` cells."""

    grid: Grid
    window: Grid
    shift: Grid

    @property
    def counts(self) -> Grid:
        """Number of windows along each axis."""
        return grid_of(self.grid, self.window)

    @property
    def size(self) -> int:
        """Number of cells per window."""
        return self.window[0] * self.window[1]

    @property
    def padded(self) -> Grid:
        return self.counts[0] * self.window[0], self.counts[1] * self.window[1]

    @property
    def axes(self) -> dict[str, int]:
        """Axis sizes of the einops patterns below: y × x windows of v × w cells."""
        return dict(zip("yxvw", (*self.counts, *self.window), strict=True))

    def split(self, cells: Float[Tensor, "b n d"]) -> Float[Tensor, "w m d"]:
        """Partition cells into windows; the windows of an image are in raster order, image after image."""
        if self.padded != self.grid:
            x = rearrange(cells, "b (y x) d -> b y x d", y=self.grid[0])
            x = F.pad(x, (0, 0, 0, self.padded[1] - self.grid[1], 0, self.padded[0] - self.grid[0]))
            cells = rearrange(x, "b y x d -> b (y x) d")
        if any(self.shift):
            return rearrange(cells.index_select(1, self.order(cells.device)), "b (w m) d -> (b w) m d", m=self.size)
        return rearrange(cells, "b (y v x w) d -> (b y x) (v w) d", **self.axes)

    def merge(self, windows: Float[Tensor, "w m d"]) -> Float[Tensor, "b n d"]:
        """Invert :meth:`split`: merge windows back to the cells of the grid, without the padding."""
        if any(self.shift):
            cells = rearrange(windows, "(b w) m d -> b (w m) d", w=self.counts[0] * self.counts[1])
            return cells.index_select(1, self.positions(windows.device))
        x = rearrange(windows, "(b y x) (v w) d -> b (y v) (x w) d", **self.axes)
        return rearrange(x[:, : self.grid[0], : self.grid[1]], "b y x d -> b (y x) d")

    def order(self, device: torch.device) -> Int[Tensor, " p"]:
        """Compute the cell indices of the rolled and partitioned map.

        Gathering by these indices copies the cells once, where pad, roll and partition would copy them three times.
        """
        numbers = torch.arange(self.padded[0] * self.padded[1], device=device).view(self.padded)
        numbers = numbers.roll((-self.shift[0], -self.shift[1]), dims=(0, 1))
        return rearrange(numbers, "(y v) (x w) -> (y x v w)", **self.axes)

    def positions(self, device: torch.device) -> Int[Tensor, " n"]:
        """Compute the index of each cell of the grid in the flattened windows."""
        numbers = torch.arange(self.padded[0] * self.padded[1], device=device)
        numbers = rearrange(numbers, "(y x v w) -> (y v) (x w)", **self.axes).roll(self.shift, dims=(0, 1))
        return numbers[: self.grid[0], : self.grid[1]].flatten()

    def mask(self, device: torch.device) -> Bool[Tensor, "w m m"] | None:
        """Compute which cells of each window may attend to each other; None if all may."""
        if self.padded == self.grid and not any(self.shift):
            return None
        rows, columns = (shift_regions(*axis, device) for axis in zip(self.grid, self.padded, self.shift, strict=True))
        region = rearrange(3 * rows[:, None] + columns, "(y v) (x w) -> (y x) (v w)", **self.axes)
        return region[:, :, None] == region[:, None, :]

    def cell_groups(self) -> CellGroups:
        """Compute each window's cells. Counting from 1 before the split turns its zero padding into −1."""
        numbers = torch.arange(1, 1 + self.grid[0] * self.grid[1], dtype=torch.float64)
        keys = self.split(numbers[None, :, None])[..., 0].long() - 1
        return CellGroups(keys, self.positions(keys.device))


def shift_regions(length: int, padded: int, shift: int, device: torch.device) -> Int[Tensor, " p"]:
    """Label positions along a padded and rolled axis: 0 is the map, 1 the padding, 2 the part rolled to the end."""
    position = torch.arange(padded, device=device)
    return (position >= length - shift).int() + (position >= padded - shift)


class WindowAttention(nn.Module):
    """Multi-head window attention with relative position bias.

    Cells also attend to the prefix tokens, and prefix tokens to all tokens, both without bias.
    """

    def __init__(self, context: MixerContext, size: int, *, shifted: bool = False) -> None:
        super().__init__()
        self.num_heads = context.num_heads
        self.size = size
        self.shifted = shifted
        self.qkv = context.make_qkv()
        self.relative = RelativeBias((size, size), context.num_heads)
        self.attend = Attend(drop_rate=context.attention_drop_rate)
        self.attend_prefix = Attend(drop_rate=context.attention_drop_rate) if context.num_prefix else None
        self.proj = nn.Linear(context.dim, context.dim)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        if grid is None:
            raise ValueError("windows need the whole grid and do not support dropped tokens")
        partition = self.partition(grid)
        windows = self.qkv(partition.split(x[:, num_prefix:]))
        if self.attend_prefix is None:
            out = partition.merge(self.attend_windows(windows, partition))
        else:
            prefix = self.qkv(x[:, :num_prefix])
            q, k, v = self.split_heads(torch.cat([prefix, partition.merge(windows)], dim=1))
            layout = Layout(Tokens(None, num_prefix), Tokens(grid, num_prefix))
            prefix_out = self.attend_prefix(q[:, :, :num_prefix], k, v, layout=layout)
            prefix_out = rearrange(prefix_out, "b h p k -> b p (h k)")
            windows = torch.cat(
                [repeat(prefix, "b p e -> (b w) p e", w=partition.counts[0] * partition.counts[1]), windows], dim=1
            )
            out = torch.cat([prefix_out, partition.merge(self.attend_windows(windows, partition, num_prefix))], dim=1)
        return self.drop(self.proj(out))

    def attend_windows(
        self, windows: Float[Tensor, "w n e"], partition: WindowPartition, num_prefix: int = 0
    ) -> Float[Tensor, "w m d"]:
        """Attend within windows, given q, k and v of the prefix tokens and cells; only cells are queries."""
        q, k, v = self.split_heads(windows)
        bias, mask = self.bias(partition.window), partition.mask(windows.device)
        if mask is not None:
            mask_bias = torch.where(mask, 0.0, -math.inf).to(bias.dtype)
            bias = bias.contiguous() + mask_bias[:, None]  # for one image, then repeated for the batch
            bias = repeat(bias, "w h q k -> (b w) h q k", b=windows.shape[0] // mask.shape[0])
        if num_prefix:
            bias = F.pad(bias, (num_prefix, 0))
        out = self.attend(q[:, :, num_prefix:], k, v, bias=bias, layout=Grouped(partition.grid, partition, num_prefix))
        return rearrange(out, "w h m k -> w m (h k)")

    def split_heads(self, qkv: Float[Tensor, "b n e"]) -> Float[Tensor, "3 b h n k"]:
        return rearrange(qkv, "b n (three h k) -> three b h n k", three=3, h=self.num_heads)

    def partition(self, grid: Grid) -> WindowPartition:
        """Partition a grid into windows of ``size``, or of the whole side without shift where the map is smaller."""
        height, width = (index(side) for side in grid)  # constants: tracing symbolic sizes takes minutes
        window = min(self.size, height), min(self.size, width)
        down, right = (self.size // 2 if self.shifted and side > self.size else 0 for side in (height, width))
        return WindowPartition((height, width), window, (down, right))

    def bias(self, window: Grid) -> Float[Tensor, "h m m"]:
        """Compute the bias of a window; smaller ones use the upper left corner, which has the same offsets."""
        bias = self.relative((self.size, self.size))
        if window == (self.size, self.size):
            return bias
        bias = rearrange(bias, "h (v w) (y x) -> h v w y x", w=self.size, x=self.size)
        corner = bias[:, : window[0], : window[1], : window[0], : window[1]]
        return rearrange(corner, "h v w y x -> h (v w) (y x)")


@dataclass(frozen=True, kw_only=True)
class Window(Mixer):
    """Options of shifted-window attention, with windows of ``size`` × ``size`` cells."""

    name: ClassVar[str] = "window"
    no_position: ClassVar[Mapping[str, str]] = {"rope": "it has its own relative position bias"}
    size: int = 7
    shift: Literal["alternate", "never"] = "alternate"  # alternate: shift every second block by half a window

    def make(self, context: MixerContext) -> WindowAttention:
        return WindowAttention(context, self.size, shifted=self.shift == "alternate" and context.index % 2 == 1)
