"""LayerNorm adds ε to the variance, under the root; added to the deviation it would have far less effect."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.prediction import near
from vitreous.lab.trial import Trial
from vitreous.layers.block import PreNormBlock
from vitreous.layers.norm import ImageNorm

CLAIM = Claim(
    title="LayerNorm and its ε",
    statement="LayerNorm takes a token's mean away and divides by σ + ε, with σ² the mean of the squared deviations "
    "and ε a small number that guards against dividing by zero.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\mathrm{LN}(x) = \gamma \, \frac{x - \mu}{\sigma + \epsilon} + \beta",
    right="It divides by √(σ² + ε). For tokens of ordinary scale the difference is negligible; a token with a "
    "deviation below √ε, which is a thousand times ε for ε = 10⁻⁶, stays small instead of being scaled up to 1.",
    right_formula=r"\mathrm{LN}(x) = \gamma \, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta",
    meaning="ε sets the deviation below which a token counts as constant: 0.001 with the 10⁻⁶ of ViT, 0.003 with "
    "torch's default of 10⁻⁵. Keep the value that the weights were trained with, and put it under the root when you "
    "write the norm yourself.",
    axes=Axes("standard deviation σ of the token", "standard deviation after the norm", log="x"),
)
WIDTH = 16  # narrow, so that the unbiased variance would differ visibly


def document(sigma: float, eps: float) -> float:
    return sigma / (sigma + eps)


def right(sigma: float, eps: float) -> float:
    return sigma / math.sqrt(sigma**2 + eps)


@torch.no_grad()
def measure(norm: nn.Module, sigma: float) -> float:
    """Standard deviation after the norm of a token with deviation σ and nonzero mean."""
    values = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    token = sigma * (3 + (values - values.mean()) / values.std(correction=0))
    return float(norm.double()(token[None, None]).std(correction=0))


def norms() -> Iterator[tuple[str, float, nn.Module]]:
    """Yield name, ε and module of the norms used in the library's blocks."""
    block = PreNormBlock(WIDTH, nn.Identity(), nn.Identity(), norm_eps=1e-6)
    yield "LayerNorm of ViT, ε = 10⁻⁶", 1e-6, block.norm1
    yield "norm over all channels and positions of an image, ε = 10⁻⁵", 1e-5, ImageNorm(WIDTH, eps=1e-5)


def cases(trial: Trial) -> Iterator[Case]:
    for name, eps, norm in norms():
        for sigma in trial.choose(quick=(1e-4, 1e-3, 1.0), full=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1, 1.0)):
            yield Case(
                f"{name}, σ = {sigma:g}",
                exactly(measure(norm, sigma)),
                document=near(document(sigma, eps), share=0.01),
                right=near(right(sigma, eps), share=0.01),
                at=sigma,
                group=name,
            )
