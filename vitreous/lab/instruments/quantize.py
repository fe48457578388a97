"""Fake quantization of weights to b bits by four schemes, with torch's ``fake_quantize`` functions."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitreous.models.vit import ViT

Quantize = Callable[[Tensor, int], Tensor]


def step(low: float, high: float, bits: int) -> float:
    """Return the step size Δ."""
    return (high - low) / (2**bits - 1)


def zero_point(low: float, high: float, bits: int) -> int:
    """Return the integer that represents 0."""
    return round(-low / step(low, high, bits))


def text_formula(w: Tensor, bits: int) -> Tensor:
    """Quantize by the text's formula: multiples of Δ, clipped to the range of signed b-bit integers."""
    half = 2 ** (bits - 1)
    return torch.fake_quantize_per_tensor_affine(w, step(float(w.min()), float(w.max()), bits), 0, -half, half - 1)


def per_tensor(w: Tensor, bits: int) -> Tensor:
    """Quantize with one affine scale and zero point for the whole matrix."""
    low, high = min(0.0, float(w.min())), max(0.0, float(w.max()))
    scale, zero = step(low, high, bits), zero_point(low, high, bits)
    return torch.fake_quantize_per_tensor_affine(w, scale, zero, 0, 2**bits - 1)


def per_channel(w: Tensor, bits: int, *, kept: float = 1.0) -> Tensor:
    """Quantize symmetrically per row, clipping at the fraction ``kept`` of its largest absolute weight."""
    largest = kept * w.abs().amax(dim=1).clamp_min(1e-12)
    half = 2 ** (bits - 1) - 1
    zeros = torch.zeros(len(w), dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(w, largest / half, zeros, 0, -half - 1, half)


def clipped_per_channel(w: Tensor, bits: int) -> Tensor:
    """Quantize per channel with the best of four clipping ranges, by squared error."""
    candidates = [per_channel(w, bits, kept=share) for share in (0.5, 0.65, 0.8, 1.0)]
    return min(candidates, key=lambda quantized: float((quantized - w).square().sum()))


def linear_weights(model: ViT) -> list[Tensor]:
    """List the weight matrices of all linear layers in the blocks."""
    parts = (part for block in model.blocks for part in block.modules())
    return [part.weight.detach() for part in parts if isinstance(part, nn.Linear)]


def quantize_blocks(model: ViT, quantize: Quantize, bits: int) -> ViT:
    """Copy a model and quantize the weight matrices of its blocks."""
    quantized = copy.deepcopy(model)
    for weight in linear_weights(quantized):
        weight.copy_(quantize(weight, bits))
    return quantized
