"""Helpers of convolutional token mixers: conversion between tokens and maps, odd kernel sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitreous.layers.mixer import Mixer
from vitreous.layers.position import Grid


def as_map(tokens: Float[Tensor, "b n d"], grid: Grid | None) -> Float[Tensor, "b d y x"]:
    """View tokens as a channels-last map, the fastest memory format for convolutions on a CPU."""
    if grid is None:
        raise ValueError("neighbors need the whole grid: this mixer does not support dropped tokens")
    return rearrange(tokens, "b (y x) d -> b d y x", y=grid[0], x=grid[1])


def as_tokens(cells: Float[Tensor, "b d y x"]) -> Float[Tensor, "b n d"]:
    return rearrange(cells, "b d y x -> b (y x) d")


def check_odd(name: str, size: int) -> int:
    if size % 2 == 0:
        raise ValueError(f"{name} must be odd, to be centered on a cell; got {size}, choose {size + 1}")
    return size


@dataclass(frozen=True, kw_only=True)
class NeighborMixer(Mixer):
    """Base of the options of mixers that combine each cell with its neighbors only."""

    no_prefix: ClassVar[str] = "they have no neighbors on the grid"
