"""PVT reduces the map before projecting it to keys and values; the other order costs more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import forward_flops
from vitreous.lab.instruments.dependence import capture_inputs
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.mixer import MixerContext
from vitreous.layers.reduction import ReducedAttention, Reduction

CLAIM = Claim(
    title="Spatial-reduction attention",
    statement="In PVT, keys and values are reduced by a convolution of R × R with stride R, so that every query looks "
    "at R² times fewer of them.",
    sources=(Source.FOUNDATIONS,),
    formula=r"K', V' = \mathrm{Conv}_{R \times R}(K, V)",
    right="The map is reduced first and projected to keys and values after a norm. Queries do attend to R² times "
    "fewer keys, but one convolution serves both, and the projection too becomes R² times cheaper.",
    right_formula=r"K', V' = \mathrm{LN}(\mathrm{Conv}_{R \times R}(X)) \, W_{K,V}",
    meaning="Reduce, then project: that saves half of the convolution's parameters and, with R = 8, two fifths of "
    "the layer's multiply-accumulates. The convolution has R²d² weights: with R = 8 by far the largest matrix of the "
    "block.",
    axes=Axes("reduction ratio R", "MACs of the layer, in units of n d²", log="x"),
)
SIDE, WIDTH = 56, 64  # PVT's first stage at 224 pixels
TOKENS = SIDE**2


def keys(ratio: int) -> float:
    """Number of keys, the same in both orders."""
    return TOKENS / ratio**2


def document(ratio: int) -> float:
    """MACs in units of n d²: four projections of n tokens, two convolutions, attention to fewer keys."""
    return 4 + 2 + 2 * keys(ratio) / WIDTH


def right(ratio: int) -> float:
    """MACs in units of n d²: one convolution, two projections of n tokens, two of fewer, attention."""
    return 2 + 1 + 2 / ratio**2 + 2 * keys(ratio) / WIDTH


def document_parameters(ratio: int) -> int:
    """Weights of four projections and two convolutions, one for keys and one for values."""
    return (4 + 2 * ratio**2) * WIDTH**2


def right_parameters(ratio: int) -> int:
    return (4 + ratio**2) * WIDTH**2


def build(ratio: int) -> ReducedAttention:
    with seeded(0):
        layer = Reduction(ratios=(ratio,)).build(MixerContext(dim=WIDTH, num_heads=1, grid=(SIDE, SIDE)))
    assert isinstance(layer, ReducedAttention)
    return layer


@torch.no_grad()
def cases(trial: Trial) -> Iterator[Case]:
    x = torch.zeros(1, TOKENS, WIDTH)
    for ratio in trial.choose(quick=(4, 8), full=(2, 4, 8)):
        layer = build(ratio)
        macs = forward_flops(layer, x, (SIDE, SIDE)) / (2 * TOKENS * WIDTH**2)
        yield Case(
            f"R = {ratio}: MACs / (n d²)",
            exactly(macs),
            document=near(document(ratio), share=0.02),
            right=near(right(ratio), share=0.02),
            at=ratio,
        )
        (_, k, _), _ = capture_inputs(layer.attention.attend, partial(layer, x, (SIDE, SIDE)))
        count = Near(keys(ratio), 0.5)
        yield Case(f"R = {ratio}: keys that a query attends to", exactly(k.shape[-2]), document=count, right=count)
        yield Case(
            f"R = {ratio}: parameters of the matrices",
            exactly(sum(parameter.numel() for parameter in layer.parameters() if parameter.ndim > 1)),
            document=near(document_parameters(ratio), share=0.02),
            right=near(right_parameters(ratio), share=0.02),
        )
