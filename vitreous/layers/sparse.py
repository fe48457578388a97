"""Attention in which every cell looks at some cells only, and the others cost nothing: base of the sparse mixers.

    output_i = Σ_j softmax_j(q_i·k_j / √k) v_j          j over the prefix tokens and the cells that i may see

To gather its own keys for every cell would make attention many products with a single row. Instead, cells that look
at much the same stand in a group; the keys that any of them sees are gathered once, and the group attends to them under
a mask. Groups have a fixed size, so that cost grows with the number of cells. Prefix tokens see everything and are seen
by every cell.
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
from vitreous.layers.layout import Grouped, Layout, Places
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.position import Grid, Rotary
from vitreous.layers.tokens import Tokens


class Groups(NamedTuple):
    """Cells that look together; a cell is its place in raster order."""

    queries: Int[Tensor, "g q"]  # a group that is not full repeats a cell
    keys: Int[Tensor, "g m"]
    seen: Bool[Tensor, "g q m"] | Bool[Tensor, "g 1 m"]
    homes: Int[Tensor, " n"]  # where each cell stands among all queries

    def places(self) -> Places:
        return Places(self.keys, self.homes)


class SparseAttention(nn.Module, ABC):
    """Multi-head attention of groups of cells, each to its own keys and the prefix tokens."""

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
    def groups(self, grid: Grid, device: torch.device) -> Groups: ...

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        if grid is None:
            raise ValueError("sparse attention needs the whole grid: it does not work with dropped tokens")
        qkv = rearrange(self.qkv(x), "b n (three h k) -> three b h n k", three=3, h=self.num_heads)
        q, k, v = qkv.contiguous()  # twice as fast to gather from
        if self.rotary is not None:
            q, k = self.rotary(q, grid, num_prefix), self.rotary(k, grid, num_prefix)
        groups = self.groups(grid, x.device)
        out = self.cells(q, k, v, groups=groups, layout=Grouped(grid, groups, num_prefix, self.num_heads))
        if self.attend_prefix is not None:
            layout = Layout(Tokens(None, num_prefix), Tokens(grid, num_prefix))
            asked = self.attend_prefix(q[:, :, :num_prefix], k, v, layout=layout)
            out = torch.cat([asked, out], dim=2)
        return self.drop(self.proj(rearrange(out, "b h n k -> b n (h k)")))

    def cells(
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
        mask = F.pad(groups.seen, (num_prefix, 0), value=True)[None]  # fused attention wants four axes
        q, k, v = gather(q, groups.queries + num_prefix), gather(k, keys), gather(v, keys)
        out = self.attend(q, k, v, mask=mask, layout=layout)
        out = rearrange(out, "(b h) g q k -> b h (g q) k", h=self.num_heads)
        return out.index_select(2, groups.homes)


def gather(x: Float[Tensor, "b h n k"], index: Int[Tensor, "g m"]) -> Float[Tensor, "bh g m k"]:
    """Batch and heads become one axis, so that one mask of the groups serves them all."""
    return x.flatten(0, 1).index_select(1, index.flatten()).unflatten(1, index.shape)


def outer(rows: Int[Tensor, "a i"], columns: Int[Tensor, "b j"], width: int) -> Int[Tensor, "ab ij"]:
    """Cells of every pair of a group of rows and a group of columns, in a grid of so many columns."""
    return rearrange(rows[:, None, :, None] * width + columns[None, :, None, :], "a b i j -> (a b) (i j)")


def outer_places(rows: Int[Tensor, "a i"], columns: Int[Tensor, "b j"]) -> Int[Tensor, "ai bj"]:
    """Where each row and column stands in :func:`outer`, counted through."""
    (a, i), (b, j) = rows.shape, columns.shape
    return rearrange(torch.arange(a * i * b * j, device=rows.device), "(a b i j) -> (a i) (b j)", a=a, b=b, i=i)


@dataclass(frozen=True, kw_only=True)
class Sparse(Mixer):
    """Base of the sparse mixers' options."""

    no_position: ClassVar[Mapping[str, str]] = {"relative": "a bias for every pair of cells would undo what it saves"}
