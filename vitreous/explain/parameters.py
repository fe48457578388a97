"""What the weights of a model show by themselves, whatever the image: its positions and its first filters."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid, Learned, LearnedAxes, SinCos
from vitreous.models.base import Model


def positions_of(model: Model) -> tuple[Float[Tensor, "n d"], Grid]:
    """The position embeddings of a model's cells, learned or fixed, at its native size; else the reason."""
    for module in model.modules():
        if isinstance(module, Learned | LearnedAxes | SinCos):
            grid = grid_of(model.config.image_size, model.strides[0]) if isinstance(module, SinCos) else module.grid
            return module(grid)[0, module.num_prefix :].detach(), grid
    raise ValueError("this model adds no table of positions: its attention, or its convolutions, know where things are")


def first_filters(model: Model) -> Float[Tensor, "d c p q"]:
    """The weights of the convolution that sees the pixels; else the reason."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None or first.in_channels != model.config.num_channels:
        raise ValueError(
            "the first convolution of this model does not see pixels, but what a fixed filter made of them"
        )
    return first.weight.detach()
