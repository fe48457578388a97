"""Weights in b bits, in four ways: as numbers that a chip with b bits can hold, turned back into floats.

Rounding and cutting off are torch's own ``fake_quantize``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitreous.models.vit import ViT

Quantize = Callable[[Tensor, int], Tensor]


def step(low: float, high: float, bits: int) -> float:
    return (high - low) / (2**bits - 1)


def zero_point(low: float, high: float, bits: int) -> int:
    """Which number stands for 0."""
    return round(-low / step(low, high, bits))


def by_the_text(w: Tensor, bits: int) -> Tensor:
    """Rounded multiples of Δ, as far as b bits with a sign can hold them."""
    half = 2 ** (bits - 1)
    return torch.fake_quantize_per_tensor_affine(w, step(float(w.min()), float(w.max()), bits), 0, -half, half - 1)


def per_tensor(w: Tensor, bits: int) -> Tensor:
    low, high = min(0.0, float(w.min())), max(0.0, float(w.max()))
    scale, zero = step(low, high, bits), zero_point(low, high, bits)
    return torch.fake_quantize_per_tensor_affine(w, scale, zero, 0, 2**bits - 1)


def per_channel(w: Tensor, bits: int, *, kept: float = 1.0) -> Tensor:
    """A scale for each row, ``kept`` of its largest weight wide on either side; what lies beyond is cut off."""
    largest = kept * w.abs().amax(dim=1).clamp_min(1e-12)
    half = 2 ** (bits - 1) - 1
    zeros = torch.zeros(len(w), dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(w, largest / half, zeros, 0, -half - 1, half)


def clipped(w: Tensor, bits: int) -> Tensor:
    """Per channel with that range, out of four, that loses least."""
    tried = [per_channel(w, bits, kept=share) for share in (0.5, 0.65, 0.8, 1.0)]
    return min(tried, key=lambda found: float((found - w).square().sum()))


def matrices_of(model: ViT) -> list[Tensor]:
    parts = (part for block in model.blocks for part in block.modules())
    return [part.weight.detach() for part in parts if isinstance(part, nn.Linear)]


def quantized(model: ViT, quantize: Quantize, bits: int) -> ViT:
    """A copy whose blocks have quantized matrices."""
    twin = copy.deepcopy(model)
    for weight in matrices_of(twin):
        weight.copy_(quantize(weight, bits))
    return twin
