"""Attention within windows that move from block to block: the cost grows with the number of cells, not its square.

"Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", Liu et al. 2021 (arXiv 2103.14030).

    weights = softmax(q kᵀ / √k + bias[Δy, Δx])        over the cells of one window        output = weights v

The grid is cut into windows of ``size`` × ``size`` cells. In every second block the cut is shifted by half a window, so
that neighbors which one block keeps apart meet in the next. As in the paper the map is rolled and not the cut, which
gives no more windows than before; cells that come to lie together only by the rolling do not see each other.

Maps of any size are padded below and on the right. Where we differ from the published code: no cell sees the padding,
so that it changes nothing. Along an axis on which the map is no larger than the window there is one window, the map.
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
from vitreous.layers.layout import Grouped, Layout, Places
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid, RelativeBias
from vitreous.layers.tokens import Tokens


class Cut(NamedTuple):
    """A grid cut into windows: their sides, and by how many cells the cut is shifted down and to the right."""

    grid: Grid
    window: Grid
    shift: Grid

    @property
    def counts(self) -> Grid:
        """Windows along each axis."""
        return grid_of(self.grid, self.window)

    @property
    def size(self) -> int:
        """Cells of one window."""
        return self.window[0] * self.window[1]

    @property
    def padded(self) -> Grid:
        return self.counts[0] * self.window[0], self.counts[1] * self.window[1]

    @property
    def axes(self) -> dict[str, int]:
        """The names of the axes in the patterns below: y × x windows of v × w cells."""
        return dict(zip("yxvw", (*self.counts, *self.window), strict=True))

    def split(self, cells: Float[Tensor, "b n d"]) -> Float[Tensor, "w m d"]:
        """The cells of every window, those of an image in raster order, image after image."""
        if self.padded != self.grid:
            x = rearrange(cells, "b (y x) d -> b y x d", y=self.grid[0])
            x = F.pad(x, (0, 0, 0, self.padded[1] - self.grid[1], 0, self.padded[0] - self.grid[0]))
            cells = rearrange(x, "b y x d -> b (y x) d")
        if any(self.shift):
            return rearrange(cells.index_select(1, self.order(cells.device)), "b (w m) d -> (b w) m d", m=self.size)
        return rearrange(cells, "b (y v x w) d -> (b y x) (v w) d", **self.axes)

    def join(self, windows: Float[Tensor, "w m d"]) -> Float[Tensor, "b n d"]:
        """The way back: windows in the order of :meth:`split` as the cells of the grid."""
        if any(self.shift):
            cells = rearrange(windows, "(b w) m d -> b (w m) d", w=self.counts[0] * self.counts[1])
            return cells.index_select(1, self.homes(windows.device))
        x = rearrange(windows, "(b y x) (v w) d -> b (y v) (x w) d", **self.axes)
        return rearrange(x[:, : self.grid[0], : self.grid[1]], "b y x d -> b (y x) d")

    def order(self, device: torch.device) -> Int[Tensor, " p"]:
        """The padded map's cells, rolled and cut: their numbers are moved instead of themselves, which are then
        gathered in one copy where a roll and a cut would make three.
        """
        numbers = torch.arange(self.padded[0] * self.padded[1], device=device).view(self.padded)
        numbers = numbers.roll((-self.shift[0], -self.shift[1]), dims=(0, 1))
        return rearrange(numbers, "(y v) (x w) -> (y x v w)", **self.axes)

    def homes(self, device: torch.device) -> Int[Tensor, " n"]:
        """Where each cell of the grid stands among those of all windows."""
        numbers = torch.arange(self.padded[0] * self.padded[1], device=device)
        numbers = rearrange(numbers, "(y x v w) -> (y v) (x w)", **self.axes).roll(self.shift, dims=(0, 1))
        return numbers[: self.grid[0], : self.grid[1]].flatten()

    def mask(self, device: torch.device) -> Bool[Tensor, "w m m"] | None:
        """Which cells of a window may see each other; None if all of them may."""
        if self.padded == self.grid and not any(self.shift):
            return None
        rows, columns = (pieces(*axis, device) for axis in zip(self.grid, self.padded, self.shift, strict=True))
        piece = rearrange(3 * rows[:, None] + columns, "(y v) (x w) -> (y x) (v w)", **self.axes)
        return piece[:, :, None] == piece[:, None, :]

    def places(self) -> Places:
        """Every window's cells. Cells are counted from 1 on the way, so that padding, which is 0, ends as −1."""
        numbers = torch.arange(1, 1 + self.grid[0] * self.grid[1], dtype=torch.float64)
        keys = self.split(numbers[None, :, None])[..., 0].long() - 1
        return Places(keys, self.homes(keys.device))


def pieces(length: int, padded: int, shift: int, device: torch.device) -> Int[Tensor, " p"]:
    """What lies where along a padded and rolled axis: 0 the map, 1 the padding, 2 the map's beginning, rolled there."""
    place = torch.arange(padded, device=device)
    return (place >= length - shift).int() + (place >= padded - shift)


class WindowAttention(nn.Module):
    """Cells look at their window and at the prefix tokens, which look at everything; these looks have no bias."""

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
            raise ValueError("windows need the whole grid: they do not work with dropped tokens")
        cut = self.cut(grid)
        windows = self.qkv(cut.split(x[:, num_prefix:]))
        if self.attend_prefix is None:
            out = cut.join(self.look_in_windows(windows, cut))
        else:
            prefix = self.qkv(x[:, :num_prefix])
            q, k, v = self.heads(torch.cat([prefix, cut.join(windows)], dim=1))
            layout = Layout(Tokens(None, num_prefix), Tokens(grid, num_prefix))
            asked = self.attend_prefix(q[:, :, :num_prefix], k, v, layout=layout)
            everywhere = rearrange(asked, "b h p k -> b p (h k)")
            windows = torch.cat([repeat(prefix, "b p e -> (b w) p e", w=cut.counts[0] * cut.counts[1]), windows], dim=1)
            out = torch.cat([everywhere, cut.join(self.look_in_windows(windows, cut, num_prefix))], dim=1)
        return self.drop(self.proj(out))

    def look_in_windows(self, windows: Float[Tensor, "w n e"], cut: Cut, num_prefix: int = 0) -> Float[Tensor, "w m d"]:
        """``windows`` hold queries, keys and values: first of the prefix tokens, then of the cells, which alone ask."""
        q, k, v = self.heads(windows)
        bias, mask = self.bias(cut.window), cut.mask(windows.device)
        if mask is not None:
            unseen = torch.where(mask, 0.0, -math.inf).to(bias.dtype)
            bias = bias.contiguous() + unseen[:, None]  # of one image, before it is repeated for all
            bias = repeat(bias, "w h q k -> (b w) h q k", b=windows.shape[0] // mask.shape[0])
        if num_prefix:
            bias = F.pad(bias, (num_prefix, 0))
        out = self.attend(q[:, :, num_prefix:], k, v, bias=bias, layout=Grouped(cut.grid, cut, num_prefix))
        return rearrange(out, "w h m k -> w m (h k)")

    def heads(self, qkv: Float[Tensor, "b n e"]) -> Float[Tensor, "3 b h n k"]:
        return rearrange(qkv, "b n (three h k) -> three b h n k", three=3, h=self.num_heads)

    def cut(self, grid: Grid) -> Cut:
        """Windows of ``size`` or, where the map is smaller, of its side; there nothing is to be shifted."""
        height, width = (index(side) for side in grid)  # numbers for a tracer too: with symbols it takes minutes
        window = min(self.size, height), min(self.size, width)
        down, right = (self.size // 2 if self.shifted and side > self.size else 0 for side in (height, width))
        return Cut((height, width), window, (down, right))

    def bias(self, window: Grid) -> Float[Tensor, "h m m"]:
        """Of the cells in the upper left corner of a whole window: the same offsets have the same bias."""
        bias = self.relative((self.size, self.size))
        if window == (self.size, self.size):
            return bias
        bias = rearrange(bias, "h (v w) (y x) -> h v w y x", w=self.size, x=self.size)
        corner = bias[:, : window[0], : window[1], : window[0], : window[1]]
        return rearrange(corner, "h v w y x -> h (v w) (y x)")


@dataclass(frozen=True, kw_only=True)
class Window(Mixer):
    """Every cell looks at the cells of its window: cost grows with the number of cells."""

    name: ClassVar[str] = "window"
    no_position: ClassVar[Mapping[str, str]] = {"rope": "it tells cells apart by a relative bias of its own"}
    size: int = 7
    shift: Literal["alternate", "never"] = "alternate"  # alternate: every second block by half a window

    def make(self, context: MixerContext) -> WindowAttention:
        return WindowAttention(context, self.size, shifted=self.shift == "alternate" and context.index % 2 == 1)
