"""Multi-scale deformable attention (Deformable DETR): every query attends to a few points that it predicts.

"Deformable DETR: Deformable Transformers for End-to-End Object Detection", Zhu et al. 2020 (arXiv 2010.04159).

    points  = reference + offsets(x)                     per head; offsets in cells from the query's position
    weights = softmax(W x)                               over a head's points on all maps
    output  = W' Σ weight · value(point)                 bilinear interpolation, zero outside the map

The cost is linear in the number of queries. Queries are not compared with keys: both the points and their weights are
predicted from the query alone, so that the weights belong to points rather than tokens. For DAT's kind, in which all
queries share their points, see ``deformable.py``.

Locations are (x, y), from 0 at the left and upper edge of a map to 1 at the right and lower edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import AttentionOp
from vitreous.layers.deformable import cell_centers
from vitreous.layers.layout import AnyLayout, Points
from vitreous.layers.mixer import Mixer, MixerContext, check_heads
from vitreous.layers.position import Grid
from vitreous.layers.tokens import Tokens


def deformable_points(
    values: Float[Tensor, "b n h k"],
    shapes: Sequence[Grid],
    locations: Float[Tensor, "b q h l p 2"],
    *,
    weights: Float[Tensor, "b q h l p"],
) -> Float[Tensor, "b q hk"]:
    """Sum weight · value over l levels and p points; ``values`` are the cells of all levels, concatenated."""
    levels = values.split([y * x for y, x in shapes], dim=1)
    sums = []
    for level, (cells, grid) in enumerate(zip(levels, shapes, strict=True)):
        maps = rearrange(cells, "b (y x) h k -> (b h) k y x", y=grid[0])
        points = rearrange(2 * locations[:, :, :, level] - 1, "b q h p two -> (b h) q p two")
        shares = rearrange(weights[:, :, :, level], "b q h p -> (b h) 1 q p")
        sums.append((shares * F.grid_sample(maps, points, align_corners=False)).sum(-1))
    return rearrange(sum(sums[1:], sums[0]), "(b h) k q -> b q (h k)", h=values.shape[2])


class PointAttend(AttentionOp):
    """Attention op over sampling points: q are the logits, k the points on all levels, v the values of all cells."""

    def __init__(self, *, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.drop_rate = drop_rate

    def forward(
        self,
        q: Float[Tensor, "b h q lp"],
        k: Float[Tensor, "b q h l p 2"],
        v: Float[Tensor, "b n h k"],
        *,
        shapes: Sequence[Grid],
        layout: AnyLayout | None = None,
    ) -> Float[Tensor, "b q hk"]:
        weights = F.dropout(self.weights(q, k), self.drop_rate, self.training)
        return self.mix(weights, k, v, shapes=shapes)

    def logits(self, q: Float[Tensor, "b h q lp"], k: Tensor, **_: Any) -> Float[Tensor, "b h q lp"]:
        return q

    def weights(self, q: Float[Tensor, "b h q lp"], k: Tensor, **_: Any) -> Float[Tensor, "b h q lp"]:
        return q.softmax(-1)

    def mix(
        self, weights: Float[Tensor, "b h q lp"], k: Tensor, v: Tensor, *, shapes: Sequence[Grid]
    ) -> Float[Tensor, "b q hk"]:
        weights = rearrange(weights, "b h q (l p) -> b q h l p", l=len(shapes))
        return deformable_points(v, shapes, k, weights=weights)


class PointAttention(nn.Module):
    """Multi-scale deformable attention: queries from ``x``, values at points of ``context``, the cells of all maps."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_levels: int = 1,
        num_points: int = 4,
        value_bias: bool = True,
        drop_rate: float = 0.0,
        attention_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.num_levels = num_levels
        self.num_points = num_points
        self.offsets = nn.Linear(dim, num_heads * num_levels * num_points * 2)
        self.weights = nn.Linear(dim, num_heads * num_levels * num_points)
        self.value = nn.Linear(dim, dim, bias=value_bias)
        self.proj = nn.Linear(dim, dim)
        self.attend = PointAttend(drop_rate=attention_drop_rate)
        self.drop = nn.Dropout(drop_rate)
        self.init_own()

    def forward(
        self,
        x: Float[Tensor, "b q d"],
        context: Float[Tensor, "b n d"],
        *,
        shapes: Sequence[Grid],
        reference: Float[Tensor, "#b q l 2"],
        queries: Tokens | None = None,
    ) -> Float[Tensor, "b q d"]:
        """Attend from ``x`` to points of ``context``.

        Args:
            x: Query tokens.
            context: Cells of all maps in raster order, one map after another.
            shapes: (rows, columns) of each map.
            reference: Location of each query on each map.
            queries: What the queries stand for if they are not the cells of the map, such as
                ``Tokens(None, 300, "queries")``; for recording.
        """
        values = rearrange(self.value(context), "b n (h k) -> b n h k", h=self.num_heads)
        logits = rearrange(self.weights(x), "b q (h lp) -> b h q lp", h=self.num_heads)
        locations = self.locations(x, reference, shapes)
        layout = None
        if len(shapes) == 1:
            layout = Points(shapes[0], rearrange(locations, "b q h 1 p two -> b h q p two"), queries)
        return self.drop(self.proj(self.attend(logits, locations, values, shapes=shapes, layout=layout)))

    def locations(
        self, x: Float[Tensor, "b q d"], reference: Float[Tensor, "#b q l 2"], shapes: Sequence[Grid]
    ) -> Float[Tensor, "b q h l p 2"]:
        offsets = rearrange(
            self.offsets(x), "b q (h l p two) -> b q h l p two", h=self.num_heads, l=self.num_levels, two=2
        )
        sizes = offsets.new_tensor([(width, height) for height, width in shapes])
        return reference[:, :, None, :, None] + offsets / sizes[:, None]

    def init_own(self) -> None:
        """Initialize as in the paper: head h samples in direction h, with points 1, 2, … cells away, for any query."""
        for linear in (self.offsets, self.weights):
            nn.init.zeros_(linear.weight)
        nn.init.zeros_(self.weights.bias)
        with torch.no_grad():
            self.offsets.bias.copy_(ray_offsets(self.num_heads, self.num_levels, self.num_points).flatten())


def ray_offsets(num_heads: int, num_levels: int, num_points: int) -> Float[Tensor, "h l p 2"]:
    """Compute offsets along one ray per head, which end on squares with a half side of 1, 2, … cells."""
    angles = torch.arange(num_heads) * (2 * math.pi / num_heads)
    rays = torch.stack([angles.cos(), angles.sin()], dim=-1)
    rays = rays / rays.abs().amax(-1, keepdim=True)
    distances = torch.arange(1, num_points + 1)
    return (rays[:, None] * distances[:, None])[:, None].expand(-1, num_levels, -1, -1)


class SelfPointAttention(nn.Module):
    """:class:`PointAttention` from the cells of a map to the same map, as a token mixer."""

    def __init__(self, context: MixerContext, *, num_points: int = 4) -> None:
        super().__init__()
        self.points = PointAttention(
            context.dim,
            context.num_heads,
            num_points=num_points,
            value_bias=context.qkv_bias,
            drop_rate=context.drop_rate,
            attention_drop_rate=context.attention_drop_rate,
        )

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        if grid is None or num_prefix:
            raise ValueError(
                f"deformable attention needs a grid and no prefix tokens, got grid={grid}, num_prefix={num_prefix}"
            )
        reference = cell_centers(grid, like=x) / x.new_tensor([grid[1], grid[0]])
        return self.points(x, x, shapes=[grid], reference=reference[None, :, None])


@dataclass(frozen=True, kw_only=True)
class DeformablePoints(Mixer):
    """Options of Deformable DETR's attention: every token attends to ``num_points`` predicted points per head."""

    name: ClassVar[str] = "deformable_points"
    no_prefix: ClassVar[str] = "it attends to points of a map, on which prefix tokens have no place"
    num_points: int = 4  # per head

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.num_points:
            raise ValueError("num_points must be at least 1, got 0")

    def make(self, context: MixerContext) -> SelfPointAttention:
        return SelfPointAttention(context, num_points=self.num_points)
