"""What the queries and keys of an attention stand for, so that its weights can be laid back onto the image.

    whole[i, j]         = how much token i takes from token j       prefix tokens first, then the cells in raster order
    onto_keys[q, y, x]  = how much query q takes from cell (y, x)   whatever the queries are

A mixer hands a layout to its seam (``layers/attention.py``); fast attention ignores it, and recording asks it three
things. ``unfold`` turns whatever axes the mixer works with into (b, h, queries, keys), with an axis of groups before
the queries where there are groups. ``whole`` makes the token matrix of the unfolded weights, which exists only where
queries and keys are one set of tokens of an image (``one_set``). ``onto_keys`` maps any weights onto the keys' grid.
What does not fit is refused: nothing is cut, and nothing is padded but the rows of tokens that do not ask.
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
    """``queries`` look at ``keys``, all of them in order: one set of tokens, or two.

    Keys of the same source on a coarser grid than the queries stand for regions: ``key_stride`` cells each way, or,
    without it, as many equal parts as there are keys. A region's weight is shared evenly by its cells. Queries of the
    same source without a grid are prefix tokens, the first ones: the other tokens do not ask.
    """

    queries: Tokens
    keys: Tokens
    key_stride: Grid | None = None

    @property
    def one_set(self) -> bool:
        """Whether tokens of one image look at each other."""
        placed = self.keys.grid is not None or self.keys.source == "image"
        return placed and self.queries.source == self.keys.source and self.queries.views == self.keys.views == 1

    @property
    def grid(self) -> Grid | None:
        """The cells of the image."""
        return self.queries.grid or self.keys.grid if self.one_set else self.keys.grid

    def unfold(self, x: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h q m"]:
        return x

    def whole(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n n"]:
        grid = self.check_one_set()
        whole = self.laid_out(weights)
        if self.keys.grid is not None and self.keys.grid != grid:
            rows, columns = regions(grid, self.keys.grid, self.key_stride, like=weights)
            keys = whole[..., self.keys.num_prefix :].unflatten(-1, self.keys.grid)
            keys = torch.einsum("...vw,vy,wx->...yx", keys, rows, columns).flatten(-2)
            whole = torch.cat([whole[..., : self.keys.num_prefix], keys], dim=-1)
        return whole if self.queries.grid else F.pad(whole, (0, 0, 0, whole.shape[-1] - whole.shape[-2]))

    def onto_keys(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n *v y x"]:
        """One map for each query, prefix keys left out; with an axis of views before it where there are several.

        A merged query is repeated for its cells.
        """
        if self.keys.grid is None:
            raise ValueError(no_grid(self.keys))
        shape = self.keys.grid if self.keys.views == 1 else (self.keys.views, *self.keys.grid)
        return self.laid_out(weights)[..., self.keys.num_prefix :].unflatten(-1, shape)

    def laid_out(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n k"]:
        """Rows and columns of all tokens, merged ones laid onto their cells."""
        batch, _, num_queries, num_keys = weights.shape
        self.queries.check(num_queries, "queries", batch)
        self.keys.check(num_keys, "keys", batch)
        rows = per_cell(weights.transpose(-2, -1), self.queries, shared=False).transpose(-2, -1)
        return per_cell(rows, self.keys, shared=True)

    def check_one_set(self) -> Grid:
        """The grid of the token matrix, or a ValueError that says why there is none."""
        queries, keys = self.queries, self.keys
        if queries.source != keys.source or queries.views > 1 or keys.views > 1:
            raise ValueError(two_sets(queries, keys))
        if keys.grid is None or self.grid is None:
            raise ValueError(no_grid(keys))
        if queries.num_prefix > keys.num_prefix or (queries.grid and queries.num_prefix < keys.num_prefix):
            raise ValueError(
                f"{queries.described()} ask {keys.described()}, which are {keys.num_prefix} prefix tokens: "
                f"these are not tokens of one image; name the source of the queries"
            )
        return self.grid


def two_sets(queries: Tokens, keys: Tokens) -> str:
    return (
        f"{queries.described()} attend to {keys.described()}, so there is no matrix of one image's tokens; "
        f"onto_keys() gives a map for each query"
    )


def no_grid(keys: Tokens) -> str:
    if keys.source == "image":
        return "tokens were dropped, so their places on the grid are not known; record in eval mode"
    return f"{keys.source} tokens have no grid to be laid onto; .weights are theirs, or give the keys a grid"


def regions(grid: Grid, key_grid: Grid, stride: Grid | None, *, like: Tensor) -> list[Float[Tensor, "v y"]]:
    """For rows and for columns: the share that every cell has in every region."""
    shares = []
    for axis, (length, count) in enumerate(zip(grid, key_grid, strict=True)):
        if stride is not None and (count - 1) * stride[axis] >= length:
            raise ValueError(
                f"keys are {key_grid[0]}×{key_grid[1]} regions of {stride[0]}×{stride[1]} cells each, "
                f"more than there are in {grid[0]}×{grid[1]} cells; give the layout of this very attention"
            )
        cell = torch.arange(length, device=like.device)
        region = torch.arange(count, device=like.device)[:, None]
        if stride is None:  # as adaptive pooling has them: neighbors share a cell where the parts do not come out even
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

    Groups lie in the batch axis, image after image, or, where ``num_heads`` is given, in the axis of the heads and
    these in the batch axis.
    """

    grid: Grid
    arrangement: Arrangement
    num_prefix: int = 0
    num_heads: int | None = None

    @property
    def one_set(self) -> bool:
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
        num_groups = len(self.arrangement.places().keys)
        if len(x) % num_groups:
            raise ValueError(f"{len(x)} groups in the batch axis are no multiple of {num_groups}, those of one image")
        return rearrange(x, "(b g) h q m -> b h g q m", g=num_groups)

    def whole(self, weights: Float[Tensor, "b h g q m"]) -> Float[Tensor, "b h n n"]:
        keys, homes = (index.to(weights.device) for index in self.arrangement.places())
        self.check(weights, keys, homes)
        num_tokens = self.num_prefix + self.grid[0] * self.grid[1]
        prefix = torch.arange(self.num_prefix, device=keys.device).expand(len(keys), -1)
        index = torch.cat([prefix, torch.where(keys < 0, num_tokens, keys + self.num_prefix)], dim=1)
        rows = weights.new_zeros(*weights.shape[:-1], num_tokens + 1)
        rows = rows.scatter_add(-1, index[:, None].expand(weights.shape), weights)[..., :num_tokens]
        return F.pad(rows.flatten(2, 3).index_select(2, homes), (0, 0, self.num_prefix, 0))

    def onto_keys(self, weights: Float[Tensor, "b h g q m"]) -> Float[Tensor, "b h n y x"]:
        """A map for each token; prefix tokens do not ask here."""
        return self.whole(weights)[..., self.num_prefix :].unflatten(-1, self.grid)

    def check(self, weights: Tensor, keys: Int[Tensor, "g m"], homes: Int[Tensor, " n"]) -> None:
        num_groups, num_keys = weights.shape[2], weights.shape[4]
        if num_groups != len(keys):
            raise ValueError(f"the weights have {num_groups} groups, the arrangement has {len(keys)}")
        if num_keys != self.num_prefix + keys.shape[1]:
            raise ValueError(
                f"the weights have {num_keys} keys in a group, the arrangement has {keys.shape[1]} cells and "
                f"{self.num_prefix} prefix tokens"
            )
        if len(homes) != self.grid[0] * self.grid[1]:
            raise ValueError(f"the arrangement has {len(homes)} cells, the grid is {self.grid[0]}×{self.grid[1]}")


class Points(NamedTuple):
    """Keys are points of the map, each read between the four cells around it and zero outside.

    ``points`` are (x, y) from 0 at the left and upper edge to 1 at the right and lower; (b, groups of heads, queries or
    1 for all, points, 2). The cells of the map ask, or other ``query_tokens``, a decoder's.
    """

    grid: Grid
    points: Float[Tensor, "b g q m 2"]
    query_tokens: Tokens | None = None

    @property
    def one_set(self) -> bool:
        return self.query_tokens is None

    @property
    def queries(self) -> Tokens:
        return self.query_tokens or self.keys

    @property
    def keys(self) -> Tokens:
        return Tokens(self.grid)

    def unfold(self, x: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h q m"]:
        return x

    def whole(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h n n"]:
        if not self.one_set:
            raise ValueError(two_sets(self.queries, self.keys))
        return self.onto_keys(weights).flatten(-2)

    def onto_keys(self, weights: Float[Tensor, "b h q m"]) -> Float[Tensor, "b h q y x"]:
        self.check(weights)
        height, width = self.grid
        across, down = (self.points * self.points.new_tensor([width, height]) - 0.5).unbind(-1)
        groups = rearrange(weights, "b (g h) q m -> b g h q m", g=self.points.shape[1])
        maps = torch.einsum("bghqm,bgqmy,bgqmx->bghqyx", groups, between(down, height), between(across, width))
        return maps.flatten(1, 2)

    def check(self, weights: Float[Tensor, "b h q m"]) -> None:
        batch, num_heads, num_queries, num_keys = weights.shape
        _, num_groups, asking, num_points, _ = self.points.shape
        if num_heads % num_groups:
            raise ValueError("heads with points of their own cannot be put together first; record without reduce")
        self.queries.check(num_queries, "queries", batch)
        if num_keys != num_points:
            raise ValueError(f"the weights have {num_keys} keys, the layout has {num_points} points")
        if asking not in (1, num_queries):
            raise ValueError(f"the layout has points of {asking} queries, the weights have {num_queries}")


def between(places: Float[Tensor, "*b"], length: int) -> Float[Tensor, "*b y"]:
    """The share of every cell along an axis in a point that lies between two of them: linear interpolation."""
    cells = torch.arange(length, device=places.device)
    return (1 - (places[..., None] - cells).abs()).clamp(min=0)


class Channels(NamedTuple):
    """Channels look at channels, over all tokens: nothing to lay onto the image."""

    grid: Grid | None
    num_prefix: int = 0

    @property
    def one_set(self) -> bool:
        return False

    @property
    def queries(self) -> Tokens:
        return Tokens(self.grid, self.num_prefix)

    @property
    def keys(self) -> Tokens:
        return self.queries

    def unfold(self, x: Float[Tensor, "b h k k"]) -> Float[Tensor, "b h k k"]:
        return x

    def whole(self, weights: Float[Tensor, "b h k k"]) -> Float[Tensor, "b h n n"]:
        raise ValueError("here channels look at channels, so there is no map of who looks where; .weights are theirs")

    def onto_keys(self, weights: Float[Tensor, "b h k k"]) -> Float[Tensor, "b h n y x"]:
        return self.whole(weights)


AnyLayout = Layout | Grouped | Points | Channels
