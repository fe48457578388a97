"""Deformable attention (DAT): all queries share keys sampled at points that are shifted depending on the image.

"Vision Transformer with Deformable Attention", Xia et al. 2022 (arXiv 2201.00520).

    points  = reference + reach · tanh(offsets(q))             a uniform grid of points plus shifts, per group of heads
    k, v    = x(points) W                                      bilinear interpolation of x, zero outside the map
    weights = softmax(q kᵀ / √k + B(query − point))            bilinear interpolation of the bias table B

With one point per cell this costs as much as full attention; a stride r between the points makes it r² times cheaper.
For Deformable DETR's kind, in which every query has its own points, see ``deformable_points.py``.

Points are (x, y) from −1 to 1. As in the published models, reference points are measured from the corner of the map
(the first cell is centered at −1 + 1/n), but sampled with −1 at the center of the first cell (``align_corners=True``):
even an unshifted point is sampled slightly inwards of its cell.
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
    """Compute points, reference + reach · tanh(W GELU(norm(conv(q)))): one for every ``stride`` × ``stride`` cells.

    ``reach`` is the largest shift, in units of the distance between two reference points.
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
        shifts = self.reach * self.proj(local).tanh().flip(-1)  # (y, x) in published weights
        return normalized(cell_centers(grid, like=q).unflatten(0, grid) + shifts, grid)


class DeformableAttention(nn.Module):
    """Multi-head deformable attention; groups of up to ``heads_per_group`` heads share their points."""

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
            raise ValueError(
                f"deformable attention needs a grid and no prefix tokens, got grid={grid}, num_prefix={num_prefix}"
            )
        q = self.q(x)
        points = self.points(self.maps(q, grid))
        sampled = rearrange(
            sample_bilinear(self.maps(x, grid), points), "(b g) c v w -> b (v w) (g c)", g=self.num_groups
        )
        k, v = rearrange(self.kv(sampled), "b m (two h k) -> two b h m k", two=2, h=self.num_heads)
        q = rearrange(q, "b n (h k) -> b h n k", h=self.num_heads)
        out = self.attend(
            q, k, v, bias=self.bias(points, grid), layout=Points(grid, self.sampling_locations(points, grid))
        )
        return self.drop(self.proj(rearrange(out, "b h n k -> b n (h k)")))

    def maps(self, x: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "bg c y x"]:
        """Split channels into one map per group."""
        return rearrange(x, "b (y x) (g c) -> (b g) c y x", y=grid[0], g=self.num_groups)

    def sampling_locations(self, points: Float[Tensor, "bg v w 2"], grid: Grid) -> Float[Tensor, "b g 1 m 2"]:
        """Convert points (±1 at the centers of the outer cells) to sampling locations (0 and 1 at the edges).

        With several groups, each key combines features that the groups sampled at different locations.
        """
        sides = points.new_tensor([grid[1], grid[0]])
        locations = ((points + 1) / 2 * (sides - 1) + 0.5) / sides
        return rearrange(locations, "(b g) v w two -> b g 1 (v w) two", g=self.num_groups)

    def bias(self, points: Float[Tensor, "bg v w 2"], grid: Grid) -> Float[Tensor, "b h n m"]:
        """Interpolate the bias table at every displacement between query and point, relative to the size of the map."""
        queries = normalized(cell_centers(grid, like=points), grid)
        keys = rearrange(points, "(b g) v w two -> g b 1 (v w) two", g=self.num_groups)
        displacements = rearrange((queries[:, None] - keys) / 2, "g b n m two -> g (b n) m two")
        rows, columns = offsets(self.relative.grid)
        table = rearrange(self.relative.table[0], "(y x) (g h) -> g h y x", y=rows, x=columns, g=self.num_groups)
        return rearrange(sample_bilinear(table, displacements), "g h (b n) m -> b (g h) n m", n=len(queries))


def sample_bilinear(maps: Float[Tensor, "b c y x"], points: Float[Tensor, "b v w 2"]) -> Float[Tensor, "b c v w"]:
    """Sample maps at points by bilinear interpolation; ±1 are the centers of the outer cells."""
    return F.grid_sample(maps, points, align_corners=True)


def cell_centers(grid: Grid, *, like: Tensor) -> Float[Tensor, "n 2"]:
    """Compute (x, y) of every cell's center, in cells."""
    y, x = coordinates(grid, like.device)
    return torch.stack([x, y], dim=-1).to(like.dtype) + 0.5


def normalized(points: Float[Tensor, "*b 2"], grid: Grid) -> Float[Tensor, "*b 2"]:
    """Convert points in cells, from the corner of the map, to the range −1 to 1."""
    x, y = points.unbind(-1)
    return torch.stack([x / grid[1], y / grid[0]], dim=-1) * 2 - 1


@dataclass(frozen=True, kw_only=True)
class Deformable(Mixer):
    """Options of deformable attention (DAT): all tokens attend to the same, image-dependent points of the map."""

    name: ClassVar[str] = "deformable"
    no_prefix: ClassVar[str] = "its keys are points of a map, on which prefix tokens have no place"
    no_position: ClassVar[Mapping[str, str]] = {
        "relative": "it has its own relative bias, for points between the cells",
        "rope": "its keys are between the cells",
    }
    heads_per_group: int = 4  # heads that share points; rounded down to a divisor of num_heads
    strides: tuple[int, ...] = (1,)  # distance between points in cells, per stage
    kernels: tuple[int, ...] = (9, 7, 5, 3)  # of the convolution that computes the shifts, per stage
    reach: float = 1.0  # largest shift, in distances between points; the paper's factor 2 is in half distances

    def __post_init__(self) -> None:
        super().__post_init__()
        if even := [kernel for kernel in self.kernels if kernel % 2 == 0]:
            raise ValueError(f"each of kernels must be odd, to be centered on a cell; got {even[0]}")

    def make(self, context: MixerContext) -> DeformableAttention:
        return DeformableAttention(
            context,
            heads_per_group=self.heads_per_group,
            kernel=self.for_stage(self.kernels, context),
            stride=self.for_stage(self.strides, context),
            reach=self.reach,
        )
