"""Pooling in the place of attention: every token becomes the mean of its neighbourhood, without a single weight.

    y[i, j] = mean of x over the k × k cells around (i, j) − x[i, j]        cells outside the map are not counted

What stands for attention in PoolFormer ("MetaFormer Is Actually What You Need for Vision", Yu et al. 2021, arXiv
2111.11418), to show how much of a transformer is left without it. The token itself is taken away because the residual
connection around the mixer adds it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.mixer import Mixer, Place
from vitreous.layers.position import Grid


class Pooling(nn.Module):
    """The mean of ``size`` × ``size`` cells, as far as the map reaches, minus the one in the middle."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(size, stride=1, padding=size // 2, count_include_pad=False)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        if grid is None:
            raise ValueError("pooling needs the whole grid: it does not work with dropped tokens")
        cells = rearrange(x, "b (y x) d -> b d y x", y=grid[0], x=grid[1])
        return rearrange(self.pool(cells), "b d y x -> b (y x) d") - x


@dataclass(frozen=True, kw_only=True)
class Pool(Mixer):
    """Every cell becomes the mean of the ``size`` × ``size`` cells around it."""

    name: ClassVar[str] = "pool"
    no_prefix: ClassVar[str] = "they have no neighbours on the grid"
    size: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 2 == 0:
            raise ValueError(f"size must be odd, to have a middle; got {self.size}, choose {self.size + 1}")

    def make(self, place: Place) -> Pooling:
        return Pooling(self.size)
