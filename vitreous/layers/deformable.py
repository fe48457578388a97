"""Deformable attention in DAT's sense: all queries share one set of keys, and the image decides where these lie.

"Vision Transformer with Deformable Attention", Xia et al. 2022 (arXiv 2201.00520).

    points  = reference + reach · tanh(offsets(q))             a uniform grid of points, shifted; per group of heads
    k, v    = x(points) W                                      x read between its cells, zero outside the map
    weights = softmax(q kᵀ / √k + B(query − point))            B, a table of biases, is read between its cells too

With a point for every cell this costs as much as full attention; a stride r between the points makes it r² times
cheaper. In Deformable DETR's sense every query has points of its own: see ``deformable_points.py``.

Points are (x, y) and the map reaches from −1 to 1. As in the published models, a point is counted from the corner of
the map (the first cell is centered at −1 + 1/n) and read as if −1 were the center of the first cell: even a point that
is not shifted is read a little inwards of its cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import Attend
from vitreous.layers.layout import Points
from vitreous.layers.mixer import Mixer, MixerContext, check_heads
from vitreous.layers.position import Grid, RelativeBias, coordinates, offsets


class ReferencePoints(nn.Module):
    """reference + reach · tanh(W GELU(norm(conv(q)))): one point for every ``stride`` × ``stride`` cells.

    ``reach`` is the farthest that a point can be shifted, in distances between two points.
    """

    def __init__(self, dim: int, kernel: int, *, stride: int, reach: float) -> None:
        super().__init__()
        self.reach = reach
        self.conv = nn.Conv2d(dim, dim, kernel, stride=stride, padding=kernel // 2, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.act = nn.GELU()
        self.proj = nn.Linear(dim, 2, bias=False)

    def forward(self, q: Float[Tensor, "b c y x"]) -> Float[Tensor, "b v w 2"]:
        local = self.act(self.norm(rearrange(self.conv(q), "b c y x -> b y x c")))
        grid = local.shape[1], local.shape[2]
        shifts = self.reach * self.proj(local).tanh().flip(-1)  # (y, x) in the published weights
        return normalized(centers(grid, like=q).unflatten(0, grid) + shifts, grid)


class DeformableAttention(nn.Module):
    """Multi-head attention to points of the map; groups of up to ``heads_per_group`` heads share their points."""

    def __init__(self, context: MixerContext, *, heads_per_group: int, kernel: int, stride: int, reach: float) -> None:
        super().__init__()
        check_heads(context.dim, context.num_heads)
        self.num_heads = context.num_heads
        largest = min(heads_per_group, context.num_heads)
        group = max(size for size in range(1, largest + 1) if context.num_heads % size == 0)
        self.num_groups = context.num_heads // group
        self.points = ReferencePoints(context.dim // self.num_groups, kernel, stride=stride, reach=reach)
        self.q = nn.Linear(context.dim, context.dim, bias=context.qkv_bias)
        self.kv = nn.Linear(context.dim, 2 * context.dim, bias=context.qkv_bias)
        self.relative = RelativeBias(context.grid, context.num_heads)
        self.attend = Attend(drop_rate=context.attention_drop_rate)
        self.proj = nn.Linear(context.dim, context.dim)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        if grid is None or num_prefix:
            raise ValueError(f"deformable attention reads a whole map and nothing else, got {num_prefix} prefix tokens")
        q = self.q(x)
        points = self.points(self.maps(q, grid))
        sampled = rearrange(read(self.maps(x, grid), points), "(b g) c v w -> b (v w) (g c)", g=self.num_groups)
        k, v = rearrange(self.kv(sampled), "b m (two h k) -> two b h m k", two=2, h=self.num_heads)
        q = rearrange(q, "b n (h k) -> b h n k", h=self.num_heads)
        out = self.attend(q, k, v, bias=self.bias(points, grid), layout=Points(grid, self.places(points, grid)))
        return self.drop(self.proj(rearrange(out, "b h n k -> b n (h k)")))

    def maps(self, x: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "bg c y x"]:
        """Each group's channels as a map of its own."""
        return rearrange(x, "b (y x) (g c) -> (b g) c y x", y=grid[0], g=self.num_groups)

    def places(self, points: Float[Tensor, "bg v w 2"], grid: Grid) -> Float[Tensor, "b g 1 m 2"]:
        """Where a group's points are read, from the map's edge at 0 to that at 1: −1 and 1 are outer cells' centers.

        With several groups keys and values blend what all of them have read, each at its own points.
        """
        sides = points.new_tensor([grid[1], grid[0]])
        read_at = ((points + 1) / 2 * (sides - 1) + 0.5) / sides
        return rearrange(read_at, "(b g) v w two -> b g 1 (v w) two", g=self.num_groups)

    def bias(self, points: Float[Tensor, "bg v w 2"], grid: Grid) -> Float[Tensor, "b h n m"]:
        """The table at every displacement between a query and a point, measured by the map: it stretches with it."""
        queries = normalized(centers(grid, like=points), grid)
        keys = rearrange(points, "(b g) v w two -> g b 1 (v w) two", g=self.num_groups)
        displacements = rearrange((queries[:, None] - keys) / 2, "g b n m two -> g (b n) m two")
        rows, columns = offsets(self.relative.grid)
        table = rearrange(self.relative.table[0], "(y x) (g h) -> g h y x", y=rows, x=columns, g=self.num_groups)
        return rearrange(read(table, displacements), "g h (b n) m -> b (g h) n m", n=len(queries))


def read(maps: Float[Tensor, "b c y x"], points: Float[Tensor, "b v w 2"]) -> Float[Tensor, "b c v w"]:
    """Bilinear interpolation between the four cells around each point; −1 and 1 are the centers of the outer cells."""
    return F.grid_sample(maps, points, align_corners=True)


def centers(grid: Grid, *, like: Tensor) -> Float[Tensor, "n 2"]:
    """(x, y) of the center of every cell, in cells."""
    y, x = coordinates(grid, like.device)
    return torch.stack([x, y], dim=-1).to(like.dtype) + 0.5


def normalized(points: Float[Tensor, "*b 2"], grid: Grid) -> Float[Tensor, "*b 2"]:
    """Points in cells, counted from the corner, as they lie between −1 and 1."""
    x, y = points.unbind(-1)
    return torch.stack([x / grid[1], y / grid[0]], dim=-1) * 2 - 1


@dataclass(frozen=True, kw_only=True)
class Deformable(Mixer):
    """Every token looks at the same points of the map, which the map itself has shifted to where something is."""

    name: ClassVar[str] = "deformable"
    no_prefix: ClassVar[str] = "its keys are points of a map, where prefix tokens have no place"
    no_position: ClassVar[Mapping[str, str]] = {
        "relative": "it has a relative bias of its own, for points between the cells",
        "rope": "its keys lie between the cells",
    }
    heads_per_group: int = 4  # that share their points; where it does not divide the heads, the next smaller that does
    strides: tuple[int, ...] = (1,)  # from point to point, in cells; by stage
    kernels: tuple[int, ...] = (9, 7, 5, 3)  # what a shift depends on: this many cells each way; by stage
    reach: float = 1.0  # farthest shift, in distances from point to point; the paper's factor 2 counts half of them

    def __post_init__(self) -> None:
        super().__post_init__()
        if even := [kernel for kernel in self.kernels if kernel % 2 == 0]:
            raise ValueError(f"each of kernels must be odd, to be centered on a cell; got {even[0]}")

    def make(self, context: MixerContext) -> DeformableAttention:
        return DeformableAttention(
            context,
            heads_per_group=self.heads_per_group,
            kernel=self.at(self.kernels, context),
            stride=self.at(self.strides, context),
            reach=self.reach,
        )
