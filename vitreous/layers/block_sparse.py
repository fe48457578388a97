"""Block-sparse attention: blocks of cells look at themselves, at the blocks around them, and at a few others.

"Big Bird: Transformers for Longer Sequences", Zaheer et al. 2020 (arXiv 2007.14062), on a grid:

    N(i) = cells of the 3×3 blocks around i's block, and of some blocks drawn at random

Neighbors see what is near; through random blocks any two cells are a few layers apart. Where we differ from the paper:
neighbors stand around a block rather than in a row with it, and all heads of a layer share its random blocks.
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
from vitreous.layers.sparse import Groups, Sparse, SparseAttention, outer, outer_places


class BlockSparseAttention(SparseAttention):
    """Groups are blocks of ``block``² cells, and their keys the cells of some blocks.

    Which blocks were drawn follows from the grid, the seed and the layer alone.
    """

    def __init__(self, context: MixerContext, block: int, *, num_random: int, seed: int) -> None:
        super().__init__(context)
        self.block = block
        self.num_random = num_random
        self.salt = random.Random(f"{seed} {context.stage} {context.index}").getrandbits(31)

    def groups(self, grid: Grid, device: torch.device) -> Groups:
        rows, columns = (blocks_of(length, self.block, device) for length in grid)
        cells = outer(rows.clamp(max=grid[0] - 1), columns.clamp(max=grid[1] - 1), grid[1])
        real = rearrange(
            (rows < grid[0])[:, None, :, None] & (columns < grid[1])[None, :, None, :], "a b i j -> (a b) (i j)"
        )
        seen, fresh = self.seen_blocks((len(rows), len(columns)), device)
        return Groups(
            queries=cells,
            keys=cells[seen].flatten(1),
            seen=(fresh[:, :, None] & real[seen]).flatten(1)[:, None],
            homes=outer_places(rows, columns)[: grid[0], : grid[1]].flatten(),
        )

    def seen_blocks(self, grid: Grid, device: torch.device) -> tuple[Int[Tensor, "g s"], Bool[Tensor, "g s"]]:
        """For each of a grid of blocks those it looks at, and which of these count: each block once."""
        near = neighborhoods(grid, 1, largest_side=1, device=device)
        num_blocks = grid[0] * grid[1]
        draws = scrambled(torch.arange(num_blocks * self.num_random, device=device) + self.salt)
        seen = torch.cat([near.keys, (draws % num_blocks).reshape(num_blocks, self.num_random)], dim=1)
        counts = torch.cat([near.seen[:, 0], near.seen.new_ones(num_blocks, self.num_random)], dim=1)
        same = (seen[:, :, None] == seen[:, None, :]) & counts[:, None, :]
        return seen, counts & ~same.tril(-1).any(-1)

    def extra_repr(self) -> str:
        return f"block={self.block}, num_random={self.num_random}"


def blocks_of(length: int, side: int, device: torch.device) -> Int[Tensor, "a i"]:
    """Coordinates along one axis, block by block; the last ones may lie beyond the grid."""
    num_blocks = -(-length // side)
    return torch.arange(num_blocks * side, device=device).reshape(num_blocks, side)


def scrambled(numbers: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """A hash to 32 bits: random numbers that a place has wherever, and in whatever order, they are drawn."""
    for _ in range(2):
        numbers = ((numbers ^ (numbers >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return numbers ^ (numbers >> 16)


@dataclass(frozen=True, kw_only=True)
class BlockSparse(Sparse):
    """A block of ``block``² cells looks at itself, the blocks around it and up to ``num_random`` others."""

    name: ClassVar[str] = "block_sparse"
    block: int = 4
    num_random: int = 2
    seed: int = 1

    def make(self, context: MixerContext) -> BlockSparseAttention:
        return BlockSparseAttention(context, self.block, num_random=self.num_random, seed=self.seed)
