"""A depthwise convolution over the grid: every channel is mixed by a small filter of its own.

    y[i, j] = b + Σ w[u, v] ⊙ x[i + u, j + v]        over k × k neighbours, zeros beyond the border

What stands for attention in ConvNeXt ("A ConvNet for the 2020s", Liu et al. 2022, arXiv 2201.03545). The filter is the
same everywhere and whatever the picture shows; no channel speaks to another, which is the MLP's part. It costs k²
products per number, so that 7×7 is cheap beside an MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.mixer import Mixer, Place
from vitreous.layers.position import Grid


class DepthwiseConv(nn.Module):
    """A filter of ``kernel`` × ``kernel`` and a bias for each channel."""

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        if grid is None:
            raise ValueError("a convolution needs the whole grid: it does not work with dropped tokens")
        cells = rearrange(x, "b (y x) d -> b d y x", y=grid[0], x=grid[1])
        return rearrange(self.conv(cells), "b d y x -> b (y x) d")


@dataclass(frozen=True, kw_only=True)
class Depthwise(Mixer):
    """Every cell sees the ``kernel`` × ``kernel`` cells around it, channel by channel."""

    name: ClassVar[str] = "depthwise"
    no_prefix: ClassVar[str] = "they have no neighbours on the grid"
    kernel: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, to have a middle; got {self.kernel}, choose {self.kernel + 1}")

    def make(self, place: Place) -> DepthwiseConv:
        return DepthwiseConv(place.dim, self.kernel)
