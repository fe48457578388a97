"""Maps of an image: attention relative to uniform, the cell at a point, and images before normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explain.rollout import class_attention
from vitreous.spec import Preprocess

if TYPE_CHECKING:
    from vitreous.explain.trace import Trace

RelativePoint = tuple[float, float]  # (y, x), from 0 at the upper and left edge to 1 at the lower and right one

#: Larger attention matrices (b·h·n² elements) are left out of overviews.
MAX_MATRIX_ELEMENTS = 40_000_000


def relative_to_mean(maps: Float[Tensor, "*b y x"]) -> Float[Tensor, "*b y x"]:
    """Divide each map by its mean, in float32 on the CPU, so that 1 is uniform attention; zero maps stay zero."""
    values = maps.detach().to("cpu", torch.float32)
    mean = values.mean(dim=(-2, -1), keepdim=True)
    return torch.where(mean > 0, values / mean, 0.0)


def mean_class_attention(trace: Trace, block: str) -> Float[Tensor, "b y x"] | None:
    """Class attention of a block, averaged over heads and relative to uniform; None if too large or without a grid."""
    attentions = trace.self_attentions()[block]
    try:
        grid, num_prefix = trace.grid_and_prefix(block)
        num_elements = math.prod(attentions[0].weights.shape[:2]) * (num_prefix + math.prod(grid)) ** 2
        if num_elements > MAX_MATRIX_ELEMENTS:
            return None
        maps = class_attention(trace.token_matrix(block), grid, num_prefix, rows=trace.read_tokens(block))
        return relative_to_mean(maps.mean(dim=1))
    except (ValueError, AttributeError):  # weights not recorded, or reduced so that they are no longer a token matrix
        return None


def cell_at(place: RelativePoint, grid: Sequence[int]) -> tuple[int, int]:
    """Row and column of the cell that contains a point."""
    row, column = (min(int(fraction * count), count - 1) for fraction, count in zip(place, grid, strict=True))
    return row, column


def denormalized(images: Float[Tensor, "*b c y x"], preprocess: Preprocess) -> UInt8[Tensor, "*b c y x"]:
    """Undo the normalization of images: uint8 pixels from 0 to 255."""
    mean, std = (images.new_tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    return ((images * std + mean).clamp(0, 1) * 255).round().to(torch.uint8).cpu()
