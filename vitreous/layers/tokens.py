"""What a set of tokens stands for: the cells of an image, of several cameras, object queries, text, merged cells."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.layers.position import Grid


class Tokens(NamedTuple):
    """A set of tokens: ``num_prefix`` without a place, then the cells of ``views`` equal grids, each in raster order.

    An image with a class token is ``Tokens((14, 14), 1)``, six cameras are ``Tokens((8, 22), source="cameras",
    views=6)``. Object queries and text have no cells: ``Tokens(None, 100, "queries")``, ``Tokens(None, 77, "text")``.
    An image without a grid stands for its prefix tokens alone, or has lost the places of its cells (token dropping).

    Where cells were merged or dropped, ``token_of_cell`` gives for every cell the token that stands for it, counted
    after the prefix, or −1 for a dropped cell; a row for each image, or one for all.
    """

    grid: Grid | None = None
    num_prefix: int = 0
    source: str = "image"
    views: int = 1
    token_of_cell: Int[Tensor, "#b n"] | None = None

    @property
    def num_cells(self) -> int:
        return self.views * self.grid[0] * self.grid[1] if self.grid is not None else 0

    def check(self, given: int, role: str, batch: int) -> None:
        """Raise a ValueError unless these can be ``given`` queries or keys of ``batch`` images."""
        expected = self.num_prefix + self.num_cells
        if self.token_of_cell is not None:
            check_merged(self.token_of_cell, self.num_cells, batch)
            expected = self.num_prefix + int(self.token_of_cell.max()) + 1
        if given != expected:
            raise ValueError(f"the weights have {given} {role}, the layout says {self.described()} ({expected})")

    def described(self) -> str:
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
    rows, given = token_of_cell.shape
    if given != num_cells:
        raise ValueError(f"token_of_cell has {given} cells, the grid has {num_cells}; give a token, or −1, for each")
    if rows not in (1, batch):
        raise ValueError(
            f"token_of_cell is for {rows} images, the weights are of {batch}; give one row, or one for each"
        )
    sizes = cells_of_token(token_of_cell, int(token_of_cell.max()) + 1)
    for image, token in (sizes == 0).nonzero().tolist():
        raise ValueError(f"token {token} after the prefix stands for no cell of image {image}, its weights for nothing")


def cells_of_token(token_of_cell: Int[Tensor, "b n"], num_tokens: int) -> Int[Tensor, "b m"]:
    """How many cells each token stands for."""
    sizes = token_of_cell.new_zeros(len(token_of_cell), num_tokens + 1)
    index = token_of_cell.where(token_of_cell >= 0, num_tokens)
    return sizes.scatter_add(1, index, torch.ones_like(index))[:, :num_tokens]


def per_cell(weights: Float[Tensor, "b h q m"], tokens: Tokens, *, shared: bool) -> Float[Tensor, "b h q n"]:
    """Lay the last axis, tokens, onto prefix tokens and cells; 0 for dropped cells.

    The weight of a merged token is ``shared`` evenly by its cells, or repeated for each.
    """
    if tokens.token_of_cell is None:
        return weights
    index = tokens.token_of_cell.to(weights.device)
    prefix, merged = weights[..., : tokens.num_prefix], weights[..., tokens.num_prefix :]
    if shared:
        merged = merged / cells_of_token(index, merged.shape[-1])[:, None, None]
    index = index.where(index >= 0, merged.shape[-1])[:, None, None].expand(*merged.shape[:-1], -1)
    return torch.cat([prefix, F.pad(merged, (0, 1)).gather(-1, index)], dim=-1)
