"""A re-parameterized depthwise convolution as token mixer: branches while it learns, one filter once it is folded.

    y = Σₖ norm(convₖ(x)) + norm(x)        kernels of k×k and of 1×1, channel by channel; the block adds its residual

What FastViT mixes its first stages with (:class:`~vitreous.layers.reparam.RepMixer`), made to stand in any block:
``vt.fold(model)`` turns it into the plain depthwise convolution that computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.cells import NeighborMixer, as_map, as_tokens, check_odd
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import Grid
from vitreous.layers.reparam import mobile_conv


class RepTokens(nn.Module):
    """Tokens laid out as a map, mixed by a depthwise :class:`~vitreous.layers.reparam.RepConv`."""

    def __init__(self, context: MixerContext, kernel: int = 3, *, branches: int = 1) -> None:
        super().__init__()
        self.conv = mobile_conv(context.dim, context.dim, kernel, groups=context.dim, branches=branches)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        return as_tokens(self.conv(as_map(x, grid)))


@dataclass(frozen=True, kw_only=True)
class Rep(NeighborMixer):
    """Every cell sees its neighbors, channel by channel, in branches that fold into one convolution."""

    name: ClassVar[str] = "rep_conv"
    kernel: int = 3
    branches: int = 1  # of that kernel, beside one of 1×1 and one that is the input

    def __post_init__(self) -> None:
        super().__post_init__()
        check_odd("kernel", self.kernel)

    def make(self, context: MixerContext) -> RepTokens:
        return RepTokens(context, self.kernel, branches=self.branches)
