"""Spatial-reduction attention (PVT): queries from all tokens, keys and values from a downsampled map.

    keys   = [prefix; reduce(cells)]
    output = softmax(x W_q (keys W_k)ᵀ / √k) keys W_v

"Pyramid Vision Transformer", Wang et al. 2021 (arXiv 2102.12122), reduces r × r cells to one by a strided convolution,
which makes attention r² times cheaper. "PVT v2", Wang et al. 2021 (arXiv 2106.13797), has a linear form: average
pooling to a fixed number of regions, whatever the size of the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import CrossAttention
from vitreous.layers.layout import Layout
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.patch import pad_to_patches
from vitreous.layers.position import Grid
from vitreous.layers.tokens import Tokens


class ConvReduce(nn.Module):
    """Downsample by norm(conv(x)) with kernel and stride ``ratio``, zero-padded to a multiple of it."""

    def __init__(self, dim: int, ratio: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.ratio = ratio
        self.conv = nn.Conv2d(dim, dim, ratio, stride=ratio)
        self.norm = nn.LayerNorm(dim, eps=norm_eps)

    @property
    def stride(self) -> Grid:
        return self.ratio, self.ratio

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b v w d"]:
        x = self.conv(pad_to_patches(x, self.stride))
        return self.norm(rearrange(x, "b d y x -> b y x d"))


class PoolReduce(nn.Module):
    """Downsample by GELU(norm(conv(mean(x)))): adaptive average pooling to ``size`` × ``size``, then a 1×1 convolution.

    Regions overlap by a row or column where ``size`` does not divide the side, and repeat cells of smaller maps.
    """

    stride = None  # depends on the map

    def __init__(self, dim: int, size: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.size = size
        self.conv = nn.Conv2d(dim, dim, 1)
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.act = nn.GELU()

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b v w d"]:
        x = self.conv(F.adaptive_avg_pool2d(x, self.size))
        return self.act(self.norm(rearrange(x, "b d y x -> b y x d")))


class ReducedAttention(nn.Module):
    """Multi-head attention of all tokens to the prefix tokens and a downsampled map.

    The map is reduced by ``ratio`` (1 is plain attention), or to ``pooled_size`` × ``pooled_size`` cells if given.
    """

    def __init__(
        self, context: MixerContext, *, ratio: int = 1, pooled_size: int | None = None, norm_eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.attention = CrossAttention(
            context.dim,
            context.num_heads,
            qkv_bias=context.qkv_bias,
            drop_rate=context.drop_rate,
            attention_drop_rate=context.attention_drop_rate,
        )
        self.reduce: ConvReduce | PoolReduce | None = None
        if pooled_size is not None:
            self.reduce = PoolReduce(context.dim, pooled_size, norm_eps=norm_eps)
        elif ratio > 1:
            self.reduce = ConvReduce(context.dim, ratio, norm_eps=norm_eps)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        tokens = Tokens(grid, num_prefix)
        if self.reduce is None:
            return self.attention(x, x, layout=Layout(tokens, tokens))
        if grid is None:
            raise ValueError("spatial-reduction attention needs the whole grid and does not support dropped tokens")
        reduced = self.reduce(rearrange(x[:, num_prefix:], "b (y x) d -> b d y x", y=grid[0]))
        keys = torch.cat([x[:, :num_prefix], rearrange(reduced, "b y x d -> b (y x) d")], dim=1)
        layout = Layout(tokens, Tokens((reduced.shape[1], reduced.shape[2]), num_prefix), self.reduce.stride)
        return self.attention(x, keys, layout=layout)


@dataclass(frozen=True, kw_only=True)
class Reduction(Mixer):
    """Options of spatial-reduction attention: reduce keys by a ratio per stage, or to a fixed number of cells."""

    name: ClassVar[str] = "reduction"
    no_position: ClassVar[Mapping[str, str]] = {
        "relative": "its keys are on a coarser grid than its queries",
        "rope": "each of its keys covers several cells",
    }
    ratios: tuple[int, ...] = (2,)  # method "conv": per stage; 1 is plain attention
    method: Literal["conv", "pool"] = "conv"
    pooled_size: int = 7  # method "pool": side of the pooled map in cells
    norm_eps: float = 1e-5

    def make(self, context: MixerContext) -> ReducedAttention:
        if self.method == "pool":
            return ReducedAttention(context, pooled_size=self.pooled_size, norm_eps=self.norm_eps)
        return ReducedAttention(context, ratio=self.for_stage(self.ratios, context), norm_eps=self.norm_eps)
