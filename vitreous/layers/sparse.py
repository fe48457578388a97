"""Sparse attention: every cell attends to a subset of the cells. Base of local, dilated and block-sparse attention.

    output_i = Σ_j softmax_j(q_i·k_j / √k) v_j          j over the prefix tokens and a neighborhood of cell i

Gathering separate keys for every cell would turn attention into many vector-matrix products. Instead, cells with
similar neighborhoods form a group: the union of their keys is gathered once, and the group attends to it under a mask.
Groups have a fixed size, so that the cost is linear in the number of cells. Prefix tokens attend to all tokens, and all
cells attend to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitreous.layers.attention import Attend
from vitreous.layers.layout import CellGroups, Grouped, Layout
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.position import Grid, Rotary
from vitreous.layers.tokens import Tokens


class Groups(NamedTuple):
    """Groups of cells that share their gathered keys; cells are indices in raster order."""

    queries: Int[Tensor, "g q"]  # a partial group repeats a cell
    keys: Int[Tensor, "g m"]
    mask: Bool[Tensor, "g q m"] | Bool[Tensor, "g 1 m"]  # True where a query attends to a key
    positions: Int[Tensor, " n"]  # index of each cell in the flattened queries

    def cell_groups(self) -> CellGroups:
        return CellGroups(self.keys, self.positions)


class SparseAttention(nn.Module, ABC):
    """Multi-head attention of groups of cells to the group's keys and the prefix tokens.

    Subclasses define the groups.
    """

    def __init__(self, context: MixerContext) -> None:
        super().__init__()
        self.num_heads = context.num_heads
        self.qkv = context.make_qkv()
        self.rotary = Rotary(context.head_dim) if context.position == "rope" else None
        self.attend = Attend(drop_rate=context.attention_drop_rate)
        self.attend_prefix = Attend(drop_rate=context.attention_drop_rate) if context.num_prefix else None
        self.proj = nn.Linear(context.dim, context.dim)
        self.drop = nn.Dropout(context.drop_rate)

    @abstractmethod
    def groups(self, grid: Grid, device: torch.device) -> Groups:
        """Divide the cells of a grid into groups, with the keys of each."""

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        if grid is None:
            raise ValueError("sparse attention needs the whole grid and does not support dropped tokens")
        qkv = rearrange(self.qkv(x), "b n (three h k) -> three b h n k", three=3, h=self.num_heads)
        q, k, v = qkv.contiguous()  # gathering is twice as fast from contiguous memory
        if self.rotary is not None:
            q, k = self.rotary(q, grid, num_prefix), self.rotary(k, grid, num_prefix)
        groups = self.groups(grid, x.device)
        out = self.attend_cells(q, k, v, groups=groups, layout=Grouped(grid, groups, num_prefix, self.num_heads))
        if self.attend_prefix is not None:
            layout = Layout(Tokens(None, num_prefix), Tokens(grid, num_prefix))
            prefix = self.attend_prefix(q[:, :, :num_prefix], k, v, layout=layout)
            out = torch.cat([prefix, out], dim=2)
        return self.drop(self.proj(rearrange(out, "b h n k -> b n (h k)")))

    def attend_cells(
        self,
        q: Float[Tensor, "b h n k"],
        k: Float[Tensor, "b h n k"],
        v: Float[Tensor, "b h n k"],
        *,
        groups: Groups,
        layout: Grouped,
    ) -> Float[Tensor, "b h m k"]:
        num_prefix = layout.num_prefix
        prefix = torch.arange(num_prefix, device=q.device).expand(len(groups.keys), -1)
        keys = torch.cat([prefix, groups.keys + num_prefix], dim=1)
        mask = F.pad(groups.mask, (num_prefix, 0), value=True)[None]  # fused attention needs four axes
        q, k, v = gather(q, groups.queries + num_prefix), gather(k, keys), gather(v, keys)
        out = self.attend(q, k, v, mask=mask, layout=layout)
        out = rearrange(out, "(b h) g q k -> b h (g q) k", h=self.num_heads)
        return out.index_select(2, groups.positions)


def gather(x: Float[Tensor, "b h n k"], index: Int[Tensor, "g m"]) -> Float[Tensor, "bh g m k"]:
    """Gather tokens by group; batch and heads are merged, so that all of them share one mask."""
    return x.flatten(0, 1).index_select(1, index.flatten()).unflatten(1, index.shape)


def outer(rows: Int[Tensor, "a i"], columns: Int[Tensor, "b j"], width: int) -> Int[Tensor, "ab ij"]:
    """Combine every group of rows with every group of columns to a group of cells, in a grid ``width`` columns wide."""
    return rearrange(rows[:, None, :, None] * width + columns[None, :, None, :], "a b i j -> (a b) (i j)")


def outer_positions(rows: Int[Tensor, "a i"], columns: Int[Tensor, "b j"]) -> Int[Tensor, "ai bj"]:
    """Compute the flat index of each (row, column) in the result of :func:`outer`."""
    (a, i), (b, j) = rows.shape, columns.shape
    return rearrange(torch.arange(a * i * b * j, device=rows.device), "(a b i j) -> (a i) (b j)", a=a, b=b, i=i)


@dataclass(frozen=True, kw_only=True)
class Sparse(Mixer):
    """Base of the options of sparse attention."""

    no_position: ClassVar[Mapping[str, str]] = {
        "relative": "a bias for every pair of cells costs as much as full attention"
    }
