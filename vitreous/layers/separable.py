"""Inverted separable convolution: pointwise expansion, depthwise convolution, pointwise projection.

    y = W₂ · depthwise(act(W₁ x))        k × k filters, zero padding

MobileNetV2's inverted residual without its norms ("MobileNetV2", Sandler et al. 2018, arXiv 1801.04381), the token
mixer of ConvFormer ("MetaFormer Baselines for Vision", Yu et al. 2022, 2210.13452). No layer has a bias, and the
activation is StarReLU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.cells import NeighborMixer, as_map, as_tokens, check_odd
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mlp import StarReLU
from vitreous.layers.position import Grid


class SeparableConv(nn.Module):
    """Depthwise ``kernel`` × ``kernel`` convolution of ``hidden_dim`` channels between two linear layers."""

    def __init__(self, context: MixerContext, kernel: int, *, hidden_dim: int) -> None:
        super().__init__()
        self.expand = nn.Linear(context.dim, hidden_dim, bias=False)
        self.act = StarReLU()
        self.depthwise = nn.Conv2d(hidden_dim, hidden_dim, kernel, padding=kernel // 2, groups=hidden_dim, bias=False)
        self.project = nn.Linear(hidden_dim, context.dim, bias=False)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        wide = as_map(self.act(self.expand(x)), grid)
        return self.drop(self.project(as_tokens(self.depthwise(wide))))


@dataclass(frozen=True, kw_only=True)
class Separable(NeighborMixer):
    """Options of the separable convolution: ``kernel`` × ``kernel`` on ``expand_ratio`` times the channels."""

    name: ClassVar[str] = "separable"
    kernel: int = 7
    expand_ratio: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_odd("kernel", self.kernel)

    def make(self, context: MixerContext) -> SeparableConv:
        return SeparableConv(context, self.kernel, hidden_dim=max(1, round(context.dim * self.expand_ratio)))
