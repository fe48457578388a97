"""Layouts: what the queries and keys of an attention stand for, so that its weights can be mapped back to the image.

    to_token_matrix(weights)[i, j]  = weight of key token j for query token i     prefix tokens first, then raster order
    onto_keys(weights)[q, y, x]     = weight of cell (y, x) for query q           for any kind of queries

A mixer passes a *layout* with every call of its attention op (``layers/attention.py``). Fast attention ignores it;
recording uses it in three steps:

1. ``unfold`` reshapes whatever axes the mixer attends over to (b, h, queries, keys), with a group axis before the
   queries for attention in groups such as windows.
2. ``to_token_matrix`` turns unfolded weights into the (n, n) token matrix. It exists only where queries and keys are
   tokens of the same image (``within_image``).
3. ``onto_keys`` turns unfolded weights into one map over the keys' grid per query.

Weights that do not fit the layout raise a ValueError; nothing is cropped, and the only padding is zero rows for tokens
that are not queries.

The layouts:

    Layout      tokens attend to tokens: self-, cross- and spatial-reduction attention
    Grouped     cells attend within groups: windows, neighborhoods, blocks
    Points      queries attend to points between the cells: deformable attention
    Channels    channels attend to channels: cross-covariance attention
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.layers.position import Grid
from vitreous.layers.tokens import Tokens, per_cell


class Layout(NamedTuple):
    """``queries`` attend to ``keys``: every query to every key, both in the order of their :class:`Tokens`.

    Keys of the queries' source on a coarser grid are regions, whose weight is divided evenly among their cells. A
    region has ``key_stride`` cells per axis; without it, each axis is divided into equal parts, one per key. Queries of
    the keys' source without a grid are the first prefix tokens; all other tokens are keys only.
    """

    queries: Tokens
    keys: Tokens
    key_stride: Grid | None = None

    @property
    def within_image(self) -> bool:
        """Whether tokens of one image attend to each other, so that the token matrix exists."""
        placed = self.keys.grid is not None or self.keys.source == "image"
        return placed and self.queries.source == self.keys.source and self.queries.views == self.keys.views == 1

    @property
    def grid(self) -> Grid | None:
        """The grid that maps are drawn on: the queries' if they are tokens of the same image, else the keys'."""
        return self.queries.grid or self.keys.grid if self.within_image else self.keys.grid

    def unfold(self, x: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h q m"]:
        return x

    def to_token_matrix(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n n"]:
        grid = self.token_grid()
        matrix = self.expand_merged(weights)
        if self.keys.grid is not None and self.keys.grid != grid:
            rows, columns = region_shares(grid, self.keys.grid, self.key_stride, like=weights)
            cells = matrix[..., self.keys.num_prefix :].unflatten(-1, self.keys.grid)
            cells = torch.einsum("...vw,vy,wx->...yx", cells, rows, columns).flatten(-2)
            matrix = torch.cat([matrix[..., : self.keys.num_prefix], cells], dim=-1)
        return matrix if self.queries.grid else F.pad(matrix, (0, 0, 0, matrix.shape[-1] - matrix.shape[-2]))

    def onto_keys(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n *v y x"]:
        """One map per query, without prefix keys; several views add an axis before the grid.

        The map of a merged query is repeated for each of its cells.
        """
        if self.keys.grid is None:
            raise ValueError(missing_grid_message(self.keys))
        shape = self.keys.grid if self.keys.views == 1 else (self.keys.views, *self.keys.grid)
        return self.expand_merged(weights)[..., self.keys.num_prefix :].unflatten(-1, shape)

    def expand_merged(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n k"]:
        """Expand merged queries and keys to one row and column per cell, after checking the shape."""
        batch, _, num_queries, num_keys = weights.shape
        self.queries.check(num_queries, "queries", batch)
        self.keys.check(num_keys, "keys", batch)
        rows = per_cell(weights.transpose(-2, -1), self.queries, shared=False).transpose(-2, -1)
        return per_cell(rows, self.keys, shared=True)

    def token_grid(self) -> Grid:
        """Return the grid of the token matrix, or raise a ValueError with the reason why there is none."""
        queries, keys = self.queries, self.keys
        if queries.source != keys.source or queries.views > 1 or keys.views > 1:
            raise ValueError(cross_attention_message(queries, keys))
        if keys.grid is None or self.grid is None:
            raise ValueError(missing_grid_message(keys))
        if queries.num_prefix > keys.num_prefix or (queries.grid and queries.num_prefix < keys.num_prefix):
            raise ValueError(
                f"{queries.describe()} attend to {keys.describe()}, which have {keys.num_prefix} prefix tokens: these "
                f"are not tokens of one image; name the source of the queries, as in Tokens(None, 100, 'queries')"
            )
        return self.grid


def cross_attention_message(queries: Tokens, keys: Tokens) -> str:
    return (
        f"{queries.describe()} attend to {keys.describe()}, so there is no matrix of one image's tokens; "
        f"use onto_keys(), which gives one map per query"
    )


def missing_grid_message(keys: Tokens) -> str:
    if keys.source == "image":
        return "tokens were dropped, so their positions on the grid are unknown; record in eval mode"
    return f"{keys.source} tokens have no grid to map the weights onto; use .weights, or give the keys a grid"


def region_shares(grid: Grid, key_grid: Grid, stride: Grid | None, *, like: Tensor) -> list[Float[Tensor, "v y"]]:
    """Compute, for rows and for columns, the share of each region's weight that each cell receives."""
    shares = []
    for axis, (length, count) in enumerate(zip(grid, key_grid, strict=True)):
        if stride is not None and (count - 1) * stride[axis] >= length:
            raise ValueError(
                f"the keys are {key_grid[0]}×{key_grid[1]} regions of {stride[0]}×{stride[1]} cells each, "
                f"more than fit in {grid[0]}×{grid[1]} cells; pass the layout that this attention was computed with"
            )
        cell = torch.arange(length, device=like.device)
        region = torch.arange(count, device=like.device)[:, None]
        if stride is None:  # as in adaptive pooling, whose regions overlap where their number does not divide the side
            inside = (cell >= region * length // count) & (cell < -(-(region + 1) * length // count))
        else:
            inside = cell // stride[axis] == region
        shares.append(inside.to(like.dtype) / inside.sum(-1, keepdim=True))
    return shares


class CellGroups(NamedTuple):
    """The keys of each group of cells, and where each cell is found among the queries of all groups.

    Cells are indices in raster order.
    """

    keys: Int[Tensor, "g m"]  # −1 is padding
    positions: Int[Tensor, " n"]  # index of each cell in the queries of all groups, flattened


class HasCellGroups(Protocol):
    """Computes its groups on request, since only recording needs them."""

    def cell_groups(self) -> CellGroups: ...


class Grouped(NamedTuple):
    """Cells attend to the cells of their group and to all prefix tokens, which come first among the keys.

    Groups are folded into the batch axis, (image, group); with ``num_heads`` they have an axis of their own and the
    heads are folded into the batch axis, (image, head).
    """

    grid: Grid
    arrangement: HasCellGroups
    num_prefix: int = 0
    num_heads: int | None = None

    @property
    def within_image(self) -> bool:
        return True

    @property
    def queries(self) -> Tokens:
        return Tokens(self.grid)

    @property
    def keys(self) -> Tokens:
        return Tokens(self.grid, self.num_prefix)

    def unfold(self, x: Float[Tensor, "w a q m"]) -> Float[Tensor, "b h g q m"]:
        if self.num_heads is not None:
            return rearrange(x, "(b h) g q m -> b h g q m", h=self.num_heads)
        num_groups = len(self.arrangement.cell_groups().keys)
        if len(x) % num_groups:
            raise ValueError(
                f"{len(x)} groups in the batch axis are not a multiple of {num_groups}, the groups per image"
            )
        return rearrange(x, "(b g) h q m -> b h g q m", g=num_groups)

    def to_token_matrix(self, weights: Float[Tensor, "b h g q m"]) -> Float[Tensor, "b h n n"]:
        keys, positions = (index.to(weights.device) for index in self.arrangement.cell_groups())
        self.check(weights, keys, positions)
        num_tokens = self.num_prefix + self.grid[0] * self.grid[1]
        prefix = torch.arange(self.num_prefix, device=keys.device).expand(len(keys), -1)
        index = torch.cat([prefix, torch.where(keys < 0, num_tokens, keys + self.num_prefix)], dim=1)
        rows = weights.new_zeros(*weights.shape[:-1], num_tokens + 1)
        rows = rows.scatter_add(-1, index[:, None].expand(weights.shape), weights)[..., :num_tokens]
        return F.pad(rows.flatten(2, 3).index_select(2, positions), (0, 0, self.num_prefix, 0))

    def onto_keys(self, weights: Float[Tensor, "b h g q m"]) -> Float[Tensor, "b h n y x"]:
        """One map per token; those of prefix tokens are zero, since they are not queries here."""
        return self.to_token_matrix(weights)[..., self.num_prefix :].unflatten(-1, self.grid)

    def check(self, weights: Tensor, keys: Int[Tensor, "g m"], positions: Int[Tensor, " n"]) -> None:
        num_groups, num_keys = weights.shape[2], weights.shape[4]
        if num_groups != len(keys):
            raise ValueError(f"the weights have {num_groups} groups, the layout has {len(keys)}")
        if num_keys != self.num_prefix + keys.shape[1]:
            raise ValueError(
                f"the weights have {num_keys} keys per group, the layout has {keys.shape[1]} cells and "
                f"{self.num_prefix} prefix tokens"
            )
        if len(positions) != self.grid[0] * self.grid[1]:
            raise ValueError(f"the groups have {len(positions)} cells, the grid has {self.grid[0]}×{self.grid[1]}")


class Points(NamedTuple):
    """Keys are points of the map, interpolated bilinearly between four cells, with zeros outside.

    ``points`` has shape (b, groups of heads, queries or 1 for shared points, points, 2): (x, y) from 0 at the left and
    upper edge to 1 at the right and lower. Queries are the cells of the map, or ``query_tokens``, as in a decoder.
    """

    grid: Grid
    points: Float[Tensor, "b g q m 2"]
    query_tokens: Tokens | None = None

    @property
    def within_image(self) -> bool:
        return self.query_tokens is None

    @property
    def queries(self) -> Tokens:
        return self.query_tokens or self.keys

    @property
    def keys(self) -> Tokens:
        return Tokens(self.grid)

    def unfold(self, x: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h q m"]:
        return x

    def to_token_matrix(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n n"]:
        if not self.within_image:
            raise ValueError(cross_attention_message(self.queries, self.keys))
        return self.onto_keys(weights).flatten(-2)

    def onto_keys(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h q y x"]:
        self.check(weights)
        height, width = self.grid
        across, down = (self.points * self.points.new_tensor([width, height]) - 0.5).unbind(-1)
        groups = rearrange(weights, "b (g h) q m -> b g h q m", g=self.points.shape[1])
        rows, columns = interpolation_weights(down, height), interpolation_weights(across, width)
        return torch.einsum("bghqm,bgqmy,bgqmx->bghqyx", groups, rows, columns).flatten(1, 2)

    def check(self, weights: Float[Tensor, "b h q m"]) -> None:
        batch, num_heads, num_queries, num_keys = weights.shape
        _, num_groups, point_queries, num_points, _ = self.points.shape
        if num_heads % num_groups:
            raise ValueError("heads with different points cannot be reduced before mapping; record without reduce")
        self.queries.check(num_queries, "queries", batch)
        if num_keys != num_points:
            raise ValueError(f"the weights have {num_keys} keys, the layout has {num_points} points")
        if point_queries not in (1, num_queries):
            raise ValueError(f"the layout has points of {point_queries} queries, the weights have {num_queries}")


def interpolation_weights(positions: Float[Tensor, "*b"], length: int) -> Float[Tensor, "*b y"]:
    """Compute each cell's weight in the linear interpolation at positions along an axis of ``length`` cells."""
    cells = torch.arange(length, device=positions.device)
    return (1 - (positions[..., None] - cells).abs()).clamp(min=0)


class Channels(NamedTuple):
    """Channels attend to channels, so that the weights cannot be mapped onto the image."""

    grid: Grid | None
    num_prefix: int = 0

    @property
    def within_image(self) -> bool:
        return False

    @property
    def queries(self) -> Tokens:
        return Tokens(self.grid, self.num_prefix)

    @property
    def keys(self) -> Tokens:
        return self.queries

    def unfold(self, x: Float[Tensor, "b h k k"]) -> Float[Tensor, "b h k k"]:
        return x

    def to_token_matrix(self, weights: Float[Tensor, "b h k k"]) -> Float[Tensor, "b h n n"]:
        raise ValueError("channels attend to channels here, so there is no map over tokens; use .weights")

    def onto_keys(self, weights: Float[Tensor, "b h k k"]) -> Float[Tensor, "b h n y x"]:
        return self.to_token_matrix(weights)


AnyLayout = Layout | Grouped | Points | Channels
