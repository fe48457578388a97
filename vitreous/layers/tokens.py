"""Token sets: what tokens stand for, be it image cells, camera views, object queries, text or merged cells."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.layers.position import Grid


class Tokens(NamedTuple):
    """A token sequence: ``num_prefix`` tokens without a position, then the cells of ``views`` grids in raster order.

        Tokens((14, 14), 1)                             an image of 14×14 cells with a class token
        Tokens((8, 22), source="cameras", views=6)      six camera images
        Tokens(None, 100, "queries")                    object queries, which have no grid
        Tokens(None, 77, "text")                        text
        Tokens(None, 1)                                 an image's class token alone

    An image without a grid may also have cells whose positions are unknown, after token dropping in training.

    For merged or dropped cells (token merging, pruning), ``token_of_cell`` maps every cell to the index of its token
    after the prefix, or to −1 if it was dropped. It has one row per image, or a single row for all of them.
    """

    grid: Grid | None = None
    num_prefix: int = 0
    source: str = "image"
    views: int = 1
    token_of_cell: Int[Tensor, "#b n"] | None = None

    @property
    def num_cells(self) -> int:
        return self.views * self.grid[0] * self.grid[1] if self.grid is not None else 0

    def check(self, num_tokens: int, role: str, batch: int) -> None:
        """Raise a ValueError unless these are ``num_tokens`` queries or keys (the ``role``) of ``batch`` images."""
        expected = self.num_prefix + self.num_cells
        if self.token_of_cell is not None:
            check_merged(self.token_of_cell, self.num_cells, batch)
            expected = self.num_prefix + int(self.token_of_cell.max()) + 1
        if num_tokens != expected:
            raise ValueError(f"the weights have {num_tokens} {role}, the layout has {self.describe()} ({expected})")

    def describe(self) -> str:
        words = []
        if self.num_prefix or self.grid is None:
            kind = "prefix" if self.source == "image" or self.grid is not None else self.source
            words.append(f"{self.num_prefix} {kind} token{'s' * (self.num_prefix != 1)}")
        if self.grid is not None:
            views = f"{self.views} views of " if self.views > 1 else ""
            words.append(f"{views}{self.grid[0]}×{self.grid[1]} {self.source} cells")
        if self.token_of_cell is not None:
            count = int(self.token_of_cell.max()) + 1
            words[-1] = f"{self.num_cells} cells merged into {count} token{'s' * (count != 1)}"
        return " and ".join(words)


def check_merged(token_of_cell: Int[Tensor, "#b n"], num_cells: int, batch: int) -> None:
    rows, length = token_of_cell.shape
    if length != num_cells:
        raise ValueError(
            f"token_of_cell has {length} cells, the grid has {num_cells}; give the token, or −1, of every cell"
        )
    if rows not in (1, batch):
        raise ValueError(
            f"token_of_cell is for {rows} images, the weights are of {batch}; give one row, or one per image"
        )
    sizes = cells_of_token(token_of_cell, int(token_of_cell.max()) + 1)
    for image, token in (sizes == 0).nonzero().tolist():
        raise ValueError(f"image {image} has no cell in token {token} after the prefix; number tokens without gaps")


def cells_of_token(token_of_cell: Int[Tensor, "b n"], num_tokens: int) -> Int[Tensor, "b m"]:
    """Count the cells of each token."""
    sizes = token_of_cell.new_zeros(len(token_of_cell), num_tokens + 1)
    index = token_of_cell.where(token_of_cell >= 0, num_tokens)
    return sizes.scatter_add(1, index, torch.ones_like(index))[:, :num_tokens]


def per_cell(weights: Float[Tensor, "b h q m"], tokens: Tokens, *, shared: bool) -> Float[Tensor, "b h q n"]:
    """Expand the last axis from tokens to prefix tokens and cells, with 0 for dropped cells.

    The weight of a merged token is divided evenly among its cells if ``shared``, else repeated for each.
    """
    if tokens.token_of_cell is None:
        return weights
    index = tokens.token_of_cell.to(weights.device)
    prefix, merged = weights[..., : tokens.num_prefix], weights[..., tokens.num_prefix :]
    if shared:
        merged = merged / cells_of_token(index, merged.shape[-1])[:, None, None]
    index = index.where(index >= 0, merged.shape[-1])[:, None, None].expand(*merged.shape[:-1], -1)
    return torch.cat([prefix, F.pad(merged, (0, 1)).gather(-1, index)], dim=-1)
