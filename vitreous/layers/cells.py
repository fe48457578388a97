"""What mixers share that look at the neighbors of a cell: tokens laid out as a map, a window with a middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitreous.layers.mixer import Mixer
from vitreous.layers.position import Grid


def as_map(tokens: Float[Tensor, "b n d"], grid: Grid | None) -> Float[Tensor, "b d y x"]:
    """A view: channels stay innermost in memory, which is how convolutions on a CPU like them best."""
    if grid is None:
        raise ValueError("neighbors need the whole grid: this mixer does not work with dropped tokens")
    return rearrange(tokens, "b (y x) d -> b d y x", y=grid[0], x=grid[1])


def as_tokens(cells: Float[Tensor, "b d y x"]) -> Float[Tensor, "b n d"]:
    return rearrange(cells, "b d y x -> b (y x) d")


def check_odd(name: str, size: int) -> int:
    if size % 2 == 0:
        raise ValueError(f"{name} must be odd, to have a middle; got {size}, choose {size + 1}")
    return size


@dataclass(frozen=True, kw_only=True)
class NeighborMixer(Mixer):
    """Options of a mixer by which a cell sees the cells around it and nothing else."""

    no_prefix: ClassVar[str] = "they have no neighbors on the grid"
