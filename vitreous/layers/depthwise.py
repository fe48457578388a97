"""Depthwise convolution as token mixer: a k × k filter per channel.

    y[i, j] = b + Σ w[u, v] ⊙ x[i + u, j + v]        over k × k neighbors, zero padding

It replaces attention in ConvNeXt ("A ConvNet for the 2020s", Liu et al. 2022, arXiv 2201.03545). Unlike attention
weights, the filter depends on neither position nor content; mixing channels is left to the MLP. It takes k²
multiplications per value, so that even 7×7 is cheap compared with the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.cells import NeighborMixer, as_map, as_tokens, check_odd
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import Grid


class DepthwiseConv(nn.Module):
    """Depthwise ``kernel`` × ``kernel`` convolution of tokens, with bias."""

    def __init__(self, context: MixerContext, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(context.dim, context.dim, kernel, padding=kernel // 2, groups=context.dim)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        return as_tokens(self.conv(as_map(x, grid)))


@dataclass(frozen=True, kw_only=True)
class Depthwise(NeighborMixer):
    """Options of the depthwise convolution mixer."""

    name: ClassVar[str] = "depthwise"
    kernel: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_odd("kernel", self.kernel)

    def make(self, context: MixerContext) -> DepthwiseConv:
        return DepthwiseConv(context, self.kernel)
