"""What the queries and keys of an attention stand for, so that its weights can be laid back onto the picture.

    whole[i, j] = how much token i takes from token j        prefix tokens first, then the cells in raster order

A mixer hands a layout to its seam (``layers/attention.py``); fast attention ignores it, and recording asks it two
things. ``unfold`` turns whatever axes the mixer works with into (b, h, queries, keys), with an axis of groups before
the queries where there are groups. ``whole`` makes the matrix above of the unfolded weights.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.layers.position import Grid


class Layout(NamedTuple):
    """All tokens in order. Without a query grid only the prefix tokens ask; with neither grid, tokens were dropped.

    A key grid coarser than that of the queries stands for regions: ``key_stride`` cells each way, or, without it, as
    many equal parts as there are keys. A region's weight is shared evenly by its cells.
    """

    query_grid: Grid | None
    key_grid: Grid | None
    num_prefix: int = 0
    key_stride: Grid | None = None

    @property
    def grid(self) -> Grid | None:
        """The cells of the picture."""
        return self.query_grid or self.key_grid

    def unfold(self, x: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h q m"]:
        return x

    def whole(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n n"]:
        if self.grid is None or self.key_grid is None:
            raise ValueError("tokens were dropped, so their places on the grid are not known; record in eval mode")
        prefix, keys = weights[..., : self.num_prefix], weights[..., self.num_prefix :]
        if self.key_grid != self.grid:
            rows, columns = regions(self.grid, self.key_grid, self.key_stride, like=weights)
            keys = keys.unflatten(-1, self.key_grid)
            keys = torch.einsum("...vw,vy,wx->...yx", keys, rows, columns).flatten(-2)
        whole = torch.cat([prefix, keys], dim=-1)
        return whole if self.query_grid else F.pad(whole, (0, 0, 0, whole.shape[-1] - whole.shape[-2]))


def regions(grid: Grid, key_grid: Grid, stride: Grid | None, *, like: Tensor) -> list[Float[Tensor, "v y"]]:
    """For rows and for columns: the share that every cell has in every region."""
    shares = []
    for axis, (length, count) in enumerate(zip(grid, key_grid, strict=True)):
        cell = torch.arange(length, device=like.device)
        region = torch.arange(count, device=like.device)[:, None]
        if stride is None:  # as adaptive pooling has them: neighbours share a cell where the parts do not come out even
            inside = (cell >= region * length // count) & (cell < -(-(region + 1) * length // count))
        else:
            inside = cell // stride[axis] == region
        shares.append(inside.to(like.dtype) / inside.sum(-1, keepdim=True))
    return shares


class Places(NamedTuple):
    """Cells of a grid in groups. A cell is its number in raster order; −1 is padding."""

    keys: Int[Tensor, "g m"]
    homes: Int[Tensor, " n"]  # where each cell stands among the queries of all groups


class Arrangement(Protocol):
    """Knows its groups, and works them out only when they are asked for."""

    def places(self) -> Places: ...


class Grouped(NamedTuple):
    """Cells look at the cells of their group and at all prefix tokens, which come first among the keys.

    Groups lie in the batch axis, picture after picture, or, where ``num_heads`` is given, in the axis of the heads and
    these in the batch axis.
    """

    grid: Grid
    arrangement: Arrangement
    num_prefix: int = 0
    num_heads: int | None = None

    def unfold(self, x: Float[Tensor, "w a q m"]) -> Float[Tensor, "b h g q m"]:
        if self.num_heads is not None:
            return rearrange(x, "(b h) g q m -> b h g q m", h=self.num_heads)
        return rearrange(x, "(b g) h q m -> b h g q m", g=len(self.arrangement.places().keys))

    def whole(self, weights: Float[Tensor, "b h g q m"]) -> Float[Tensor, "b h n n"]:
        keys, homes = (index.to(weights.device) for index in self.arrangement.places())
        num_tokens = self.num_prefix + self.grid[0] * self.grid[1]
        prefix = torch.arange(self.num_prefix, device=keys.device).expand(len(keys), -1)
        index = torch.cat([prefix, torch.where(keys < 0, num_tokens, keys + self.num_prefix)], dim=1)
        rows = weights.new_zeros(*weights.shape[:-1], num_tokens + 1)
        rows = rows.scatter_add(-1, index[:, None].expand(weights.shape), weights)[..., :num_tokens]
        return F.pad(rows.flatten(2, 3).index_select(2, homes), (0, 0, self.num_prefix, 0))


class Points(NamedTuple):
    """Keys are points of the map, each read between the four cells around it and zero outside.

    ``points`` are (x, y) from 0 at the left and upper edge to 1 at the right and lower; (b, groups of heads, queries or
    1 for all, points, 2).
    """

    grid: Grid
    points: Float[Tensor, "b g q m 2"]
    num_prefix: int = 0

    def unfold(self, x: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h q m"]:
        return x

    def whole(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n n"]:
        height, width = self.grid
        across, down = (self.points * self.points.new_tensor([width, height]) - 0.5).unbind(-1)
        num_groups = self.points.shape[1]
        if weights.shape[1] % num_groups:
            raise ValueError("heads with points of their own cannot be put together first; record without reduce")
        groups = rearrange(weights, "b (g h) q m -> b g h q m", g=num_groups)
        whole = torch.einsum("bghqm,bgqmy,bgqmx->bghqyx", groups, between(down, height), between(across, width))
        return rearrange(whole, "b g h q y x -> b (g h) q (y x)")


def between(places: Float[Tensor, "*b"], length: int) -> Float[Tensor, "*b y"]:
    """The share of every cell along an axis in a point that lies between two of them: linear interpolation."""
    cells = torch.arange(length, device=places.device)
    return (1 - (places[..., None] - cells).abs()).clamp(min=0)


class Channels(NamedTuple):
    """Channels look at channels, over all tokens: nothing to lay onto the picture."""

    grid: Grid | None
    num_prefix: int = 0

    def unfold(self, x: Float[Tensor, "b h k k"]) -> Float[Tensor, "b h k k"]:
        return x

    def whole(self, weights: Float[Tensor, "b h k k"]) -> Float[Tensor, "b h n n"]:
        raise ValueError("here channels look at channels, so there is no map of who looks where; .weights are theirs")


AnyLayout = Layout | Grouped | Points | Channels
