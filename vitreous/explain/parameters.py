"""Evidence that depends on the weights alone: position embeddings and the filters of the first convolution."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid, Learned, LearnedAxes, SinCos
from vitreous.models.base import Model


def positions_of(model: Model) -> tuple[Float[Tensor, "n d"], Grid]:
    """Return the position embedding of every cell, learned or fixed, and the grid, at the model's image size.

    Raises:
        ValueError: If the model adds no position embedding to its tokens.
    """
    for module in model.modules():
        if isinstance(module, Learned | LearnedAxes | SinCos):
            grid = grid_of(model.config.image_size, model.strides[0]) if isinstance(module, SinCos) else module.grid
            return module(grid)[0, module.num_prefix :].detach(), grid
    raise ValueError("this model adds no position embedding: positions enter through its attention or convolutions")


def first_filters(model: Model) -> Float[Tensor, "d c p q"]:
    """Return the weights of the convolution that is applied to the pixels.

    Raises:
        ValueError: If the first convolution is not applied to the pixels.
    """
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None or first.in_channels != model.config.num_channels:
        raise ValueError(
            "the first convolution of this model is not applied to pixels, but to the output of a fixed filter"
        )
    return first.weight.detach()
