"""Block-sparse attention: blocks of cells attend to themselves, their neighboring blocks and a few random blocks.

"Big Bird: Transformers for Longer Sequences", Zaheer et al. 2020 (arXiv 2007.14062), on a grid:

    N(i) = cells of the 3×3 blocks around i's block, and of a few random blocks

Neighboring blocks cover local structure; random blocks connect any two cells within a few layers. Where we differ from
the paper: neighborhoods are two-dimensional, and all heads of a layer share its random blocks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from vitreous.layers.local import neighborhoods
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import Grid
from vitreous.layers.sparse import Groups, Sparse, SparseAttention, outer, outer_positions


class BlockSparseAttention(SparseAttention):
    """Block-sparse attention with groups of ``block``² cells.

    The random blocks depend on nothing but the grid, the seed and the layer.
    """

    def __init__(self, context: MixerContext, block: int, *, num_random: int, seed: int) -> None:
        super().__init__(context)
        self.block = block
        self.num_random = num_random
        self.salt = random.Random(f"{seed} {context.stage} {context.index}").getrandbits(31)

    def groups(self, grid: Grid, device: torch.device) -> Groups:
        rows, columns = (block_coordinates(length, self.block, device) for length in grid)
        cells = outer(rows.clamp(max=grid[0] - 1), columns.clamp(max=grid[1] - 1), grid[1])
        real = rearrange(
            (rows < grid[0])[:, None, :, None] & (columns < grid[1])[None, :, None, :], "a b i j -> (a b) (i j)"
        )
        mask, fresh = self.attended_blocks((len(rows), len(columns)), device)
        return Groups(
            queries=cells,
            keys=cells[mask].flatten(1),
            mask=(fresh[:, :, None] & real[mask]).flatten(1)[:, None],
            positions=outer_positions(rows, columns)[: grid[0], : grid[1]].flatten(),
        )

    def attended_blocks(self, grid: Grid, device: torch.device) -> tuple[Int[Tensor, "g s"], Bool[Tensor, "g s"]]:
        """Select the blocks that each block attends to, and mark repeated or padding blocks as False."""
        near = neighborhoods(grid, 1, largest_side=1, device=device)
        num_blocks = grid[0] * grid[1]
        draws = hash32(torch.arange(num_blocks * self.num_random, device=device) + self.salt)
        mask = torch.cat([near.keys, (draws % num_blocks).reshape(num_blocks, self.num_random)], dim=1)
        counts = torch.cat([near.mask[:, 0], near.mask.new_ones(num_blocks, self.num_random)], dim=1)
        same = (mask[:, :, None] == mask[:, None, :]) & counts[:, None, :]
        return mask, counts & ~same.tril(-1).any(-1)

    def extra_repr(self) -> str:
        return f"block={self.block}, num_random={self.num_random}"


def block_coordinates(length: int, side: int, device: torch.device) -> Int[Tensor, "a i"]:
    """Compute the coordinates along one axis, block by block; the last may lie beyond the grid."""
    num_blocks = -(-length // side)
    return torch.arange(num_blocks * side, device=device).reshape(num_blocks, side)


def hash32(numbers: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Hash numbers to 32 bits: pseudo-random draws that do not depend on the device or on their order."""
    for _ in range(2):
        numbers = ((numbers ^ (numbers >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return numbers ^ (numbers >> 16)


@dataclass(frozen=True, kw_only=True)
class BlockSparse(Sparse):
    """Options of block-sparse attention: blocks of ``block``² cells, with ``num_random`` random blocks each."""

    name: ClassVar[str] = "block_sparse"
    block: int = 4
    num_random: int = 2
    seed: int = 1

    def make(self, context: MixerContext) -> BlockSparseAttention:
        return BlockSparseAttention(context, self.block, num_random=self.num_random, seed=self.seed)
