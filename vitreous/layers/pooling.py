"""Average pooling as token mixer (PoolFormer), without parameters.

    y[i, j] = mean of x over the k × k cells around (i, j) − x[i, j]        cells outside the map excluded

It replaces attention in PoolFormer ("MetaFormer Is Actually What You Need for Vision", Yu et al. 2021, arXiv
2111.11418), to show how well the rest of the transformer does without it. The token itself is subtracted because the
residual connection around the mixer adds it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.cells import NeighborMixer, as_map, as_tokens, check_odd
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import Grid


class PoolDifference(nn.Module):
    """Average over ``size`` × ``size`` cells of a map, excluding padding, minus the center cell."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(size, stride=1, padding=size // 2, count_include_pad=False)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return self.pool(x) - x


class Pooling(PoolDifference):
    """Pooling token mixer: :class:`PoolDifference` on tokens."""

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:  # type: ignore[override]
        return as_tokens(super().forward(as_map(x, grid)))


@dataclass(frozen=True, kw_only=True)
class Pool(NeighborMixer):
    """Options of the pooling mixer, over ``size`` × ``size`` cells."""

    name: ClassVar[str] = "pool"
    size: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_odd("size", self.size)

    def make(self, context: MixerContext) -> Pooling:
        return Pooling(self.size)
