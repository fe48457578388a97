"""Rollout as the plain product of attention matrices: exact without residuals, and then all tokens see the same."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.explain.rollout import rollout
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import Estimate, bootstrap
from vitreous.lab.prediction import AtLeast, Near, near
from vitreous.lab.real import deit_tiny, pictures, traces
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend

CLAIM = Claim(
    title="Attention rollout without the residual",
    statement="The product of all layers' attention matrices says how much each input token influences each output "
    "token; its rows are the receptive fields of the tokens.",
    sources=(Source.PRINCIPLES, Source.FOUNDATIONS),
    formula=r"R = A^{(L)} A^{(L-1)} \cdots A^{(1)}",
    right="Exact for attention without residual connections. But every factor averages, so that after a dozen layers all "
    "rows are nearly the same. Real blocks add their input: half of the identity in every factor keeps rows apart.",
    right_formula=r"R = \prod_l \frac{1}{2} (A^{(l)} + I)",
    meaning="Use the product with the residual to see where a token's information comes from; the plain product shows "
    "the same picture for every token. It also shows why attention needs residuals: without them tokens become one.",
)
LAYERS = 12
TOLD_APART = 0.05  # a twentieth of the influence lies elsewhere


def right(n: int, sigma: float, layers: int, *, residual: bool) -> float:
    """How far rows of the product lie from their mean, with n keys and normal logits of deviation σ in each layer.

    A layer multiplies it by ρ = √((e^σ² − 1) / n); with the residual by √(1 + ρ²) / 2, starting from the identity's 1.
    """
    rho = float(((torch.tensor(sigma**2).exp() - 1) / n).sqrt())
    return ((1 + rho**2) ** 0.5 / 2 if residual else rho) ** layers


def spread(product: Tensor) -> float:
    """The length of a row's deviation from the mean row; 1 for the identity, 0 where all rows are the same."""
    return float((product - product.mean(dim=-2, keepdim=True)).square().sum(dim=-1).mean().sqrt())


def apart(product: Tensor) -> Tensor:
    """The share of a row's influence that lies elsewhere than the mean row's, per picture: 0 for equal rows."""
    return (product - product.mean(dim=-2, keepdim=True)).abs().sum(dim=-1).mean(dim=-1) / 2


def layer(n: int, sigma: float, dice: torch.Generator) -> tuple[Tensor, Tensor]:
    """Queries and keys of width n whose scaled logits are independent, normal, of deviation σ."""
    logits = sigma * torch.randn(1, 1, n, n, generator=dice, dtype=torch.float64)
    return logits * n**0.5, torch.eye(n, dtype=torch.float64)[None, None]


def measured_spread(n: int, sigma: float, layers: int, residual: bool, seed: int) -> float:
    dice = torch.Generator().manual_seed(seed)
    wholes = [Attend().weights(*layer(n, sigma, dice)) for _ in range(layers)]
    return spread(rollout(wholes, residual=residual))


def difference(n: int, seed: int) -> float:
    """|R x − output| / |output| for a stack of attention layers that has nothing else in it."""
    dice = torch.Generator().manual_seed(seed)
    x = tokens = torch.randn(1, 1, n, 8, generator=dice, dtype=torch.float64)
    wholes = []
    for q, k in (layer(n, 1.0, dice) for _ in range(LAYERS)):
        wholes.append(Attend().weights(q, k))
        tokens = Attend()(q, k, tokens)
    return float((rollout(wholes, residual=False) @ x[0] - tokens[0]).norm() / tokens.norm())


def cases(trial: Trial) -> Iterator[Case]:
    yield Case(
        "attention alone: product applied to the input, less the output",
        trial.repeat(lambda seed: difference(32, seed)),
        document=Near(0.0, 1e-6),
        right=Near(0.0, 1e-6),
    )
    for sigma in (1.0, 2.0):
        for residual in (False, True):
            yield Case(
                f"{'half the identity added' if residual else 'plain product'}, σ = {sigma:g}: rows from their mean",
                trial.repeat(lambda seed, s=sigma, r=residual: measured_spread(197, s, LAYERS, r, seed)),
                document=None if residual else AtLeast(TOLD_APART),
                right=near(right(197, sigma, LAYERS, residual=residual), share=0.5),
            )
    if trial.has("weights"):
        plain, with_residual = real_rows(trial)
        yield Case("DeiT-Tiny, plain product: influence that differs", plain, document=AtLeast(TOLD_APART))
        yield Case("DeiT-Tiny, half the identity added: the same", with_residual, right=AtLeast(TOLD_APART))


def real_rows(trial: Trial) -> tuple[Estimate, Estimate]:
    images, _ = pictures(trial, trial.choose(6, 48))
    found: list[list[float]] = [[], []]
    for trace in traces(deit_tiny(trial), images):
        wholes = list(trace.whole().values())
        for values, residual in zip(found, (False, True), strict=True):
            values += apart(rollout(wholes, residual=residual)).tolist()
    plain, with_residual = (bootstrap(values, lambda drawn: float(drawn.mean())) for values in found)
    return plain, with_residual
