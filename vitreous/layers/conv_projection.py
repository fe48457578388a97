"""Convolutional projection attention (CvT): queries, keys and values are projected by depthwise convolutions.

    q, k, v = W_q norm(conv_q(x)),  W_k norm(conv_k(x)),  W_v norm(conv_v(x))
    y       = W · softmax(q kᵀ / √d) v

The convolutions are depthwise and add little to the cost; those of keys and values have stride ``kv_stride``, which
leaves kv_stride² times fewer keys. Prefix tokens have no neighbors and bypass the convolutions.

Note the scale: as in the authors' code it is √d of the full width, not of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import Attend
from vitreous.layers.cells import check_odd
from vitreous.layers.layout import Layout
from vitreous.layers.mixer import Mixer, MixerContext, check_heads
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid
from vitreous.layers.tokens import Tokens


class Projection(nn.Module):
    """Convolutional projection, W · [prefix; norm(conv(cells))]."""

    def __init__(self, dim: int, kernel: int, stride: int, *, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel, stride=stride, padding=kernel // 2, groups=dim, bias=False)
        self.norm = nn.BatchNorm2d(dim)
        self.linear = nn.Linear(dim, dim, bias=bias)

    def forward(self, prefix: Float[Tensor, "b p d"], cells: Float[Tensor, "b d y x"]) -> Float[Tensor, "b m d"]:
        mixed = rearrange(self.norm(self.conv(cells)), "b d y x -> b (y x) d")
        return self.linear(torch.cat([prefix, mixed], dim=1))


class ConvProjectedAttention(nn.Module):
    """Multi-head attention with convolutional projections, to keys on a grid ``kv_stride`` times coarser."""

    def __init__(self, context: MixerContext, *, kernel: int = 3, kv_stride: int = 2) -> None:
        super().__init__()
        check_heads(context.dim, context.num_heads)
        self.num_heads = context.num_heads
        self.kv_stride = kv_stride
        self.q = Projection(context.dim, kernel, 1, bias=context.qkv_bias)
        self.k = Projection(context.dim, kernel, kv_stride, bias=context.qkv_bias)
        self.v = Projection(context.dim, kernel, kv_stride, bias=context.qkv_bias)
        temperature = math.sqrt(context.num_heads)  # √h √k = √d
        self.attend = Attend(temperature=temperature, drop_rate=context.attention_drop_rate)
        self.proj = nn.Linear(context.dim, context.dim)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        if grid is None:
            raise ValueError("convolutional projections need the whole grid and do not support dropped tokens")
        prefix, cells = x[:, :num_prefix], rearrange(x[:, num_prefix:], "b (y x) d -> b d y x", y=grid[0])
        q, k, v = (
            rearrange(project(prefix, cells), "b m (h k) -> b h m k", h=self.num_heads)
            for project in (self.q, self.k, self.v)
        )
        stride = self.kv_stride, self.kv_stride
        layout = Layout(Tokens(grid, num_prefix), Tokens(grid_of(grid, stride), num_prefix), stride)
        out = self.attend(q, k, v, layout=layout)
        return self.drop(self.proj(rearrange(out, "b h n k -> b n (h k)")))


@dataclass(frozen=True, kw_only=True)
class ConvProjection(Mixer):
    """Options of convolutional projection attention."""

    name: ClassVar[str] = "conv_projection"
    kernel: int = 3
    kv_stride: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_odd("kernel", self.kernel)

    def make(self, context: MixerContext) -> ConvProjectedAttention:
        return ConvProjectedAttention(context, kernel=self.kernel, kv_stride=self.kv_stride)
