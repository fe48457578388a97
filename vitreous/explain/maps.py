"""Maps of an image: attention in even shares, places on a grid, and the image as it was before normalization."""

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

Place = tuple[float, float]  # y and x, from 0 at the upper and left edge to 1 at the lower and right one

#: No attention matrix of more numbers than this is laid out unless asked for by name.
MOST_NUMBERS = 40_000_000


def shares(maps: Float[Tensor, "*b y x"]) -> Float[Tensor, "*b y x"]:
    """Divide maps by their mean, in float32 on the CPU: 1 is what every cell would get if all got the same."""
    values = maps.detach().to("cpu", torch.float32)
    mean = values.mean(dim=(-2, -1), keepdim=True)
    return torch.where(mean > 0, values / mean, 0.0)


def mean_over_heads(trace: Trace, block: str) -> Float[Tensor, "b y x"] | None:
    """Class attention of a block in shares; None for what lies on no grid, or has more than ``MOST_NUMBERS``."""
    attentions = trace.looking()[block]
    try:
        grid, num_prefix = trace.cells(block)
        numbers = math.prod(attentions[0].weights.shape[:2]) * (num_prefix + math.prod(grid)) ** 2
        if numbers > MOST_NUMBERS:
            return None
        found = class_attention(trace.whole_of(block), grid, num_prefix, rows=trace.rows(block))
        return shares(found.mean(dim=1))
    except (ValueError, AttributeError):  # weights that were not kept, or no longer are a matrix of tokens
        return None


def cell_at(place: Place, grid: Sequence[int]) -> tuple[int, int]:
    """Row and column of the cell that a place lies in."""
    row, column = (min(int(part * count), count - 1) for part, count in zip(place, grid, strict=True))
    return row, column


def denormalized(images: Float[Tensor, "*b c y x"], preprocess: Preprocess) -> UInt8[Tensor, "*b c y x"]:
    """Undo the normalization of images: pixels from 0 to 255 again."""
    mean, std = (images.new_tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    return ((images * std + mean).clamp(0, 1) * 255).round().to(torch.uint8).cpu()
