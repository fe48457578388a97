"""Dividing by √d keeps a dot product's variance independent of d; it is the product of both variances."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.prediction import near
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="The variance of a scaled dot product",
    statement="Queries and keys have entries of variance σ². Divided by √d, their dot product has variance σ² again, "
    "whatever the head width d.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\mathrm{Var}(q^\top k / \sqrt{d}) = \sigma^2",
    right="The variance is the product of both variances, so it is σ² only for σ = 1. It is indeed independent of d.",
    right_formula=r"\mathrm{Var}(q^\top k / \sqrt{d}) = \sigma_q^2 \, \sigma_k^2",
    meaning="√d compensates for the width alone. If queries and keys grow twice as large during training, logits "
    "spread four times as wide and attention saturates: normalizing queries and keys (QK-norm) prevents that.",
    axes=Axes("head width d", "variance of qᵀk / √d", log="xy"),
)


def document(sigma: float) -> float:
    return sigma**2


def right(sigma_q: float, sigma_k: float) -> float:
    return sigma_q**2 * sigma_k**2


def measure(d: int, sigma: float, seed: int) -> float:
    """Variance over 50,000 pairs of independent queries and keys."""
    draws = torch.Generator().manual_seed(seed)
    q, k = (sigma * torch.randn(50_000, d, generator=draws) for _ in range(2))
    return float(((q * k).sum(dim=1) / d**0.5).var())


def cases(trial: Trial) -> Iterator[Case]:
    for sigma in (1.0, 2.0):
        for d in trial.choose(quick=(16, 64), full=(4, 16, 64, 256)):
            yield Case(
                f"σ = {sigma:g}, d = {d}",
                trial.repeat(partial(measure, d, sigma)),
                document=near(document(sigma), share=0.05),
                right=near(right(sigma, sigma), share=0.05),
                at=d,
                group=f"σ = {sigma:g}",
            )
