"""Re-parameterized depthwise convolution as token mixer: several branches in training, one filter once folded.

    y = Σₖ norm(convₖ(x)) + norm(x)        kernels of k×k and of 1×1, channel by channel; the block adds its residual

The token mixer of FastViT's first stages (:class:`~vitreous.layers.reparam.RepMixer`) in a form that fits any block.
``vt.fold(model)`` turns it into an equivalent plain depthwise convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.cells import NeighborMixer, as_map, as_tokens, check_odd
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import Grid
from vitreous.layers.reparam import mobileone_conv


class RepConvTokens(nn.Module):
    """Depthwise :class:`~vitreous.layers.reparam.RepConv` on tokens."""

    def __init__(self, context: MixerContext, kernel: int = 3, *, branches: int = 1) -> None:
        super().__init__()
        self.conv = mobileone_conv(context.dim, context.dim, kernel, groups=context.dim, branches=branches)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        return as_tokens(self.conv(as_map(x, grid)))


@dataclass(frozen=True, kw_only=True)
class RepConvMixer(NeighborMixer):
    """Options of the re-parameterized depthwise convolution mixer."""

    name: ClassVar[str] = "rep_conv"
    kernel: int = 3
    branches: int = 1  # with that kernel, in addition to the 1×1 and identity branches

    def __post_init__(self) -> None:
        super().__post_init__()
        check_odd("kernel", self.kernel)

    def make(self, context: MixerContext) -> RepConvTokens:
        return RepConvTokens(context, self.kernel, branches=self.branches)
