"""Cosine features do not approximate softmax and go negative; positive ones work for short vectors only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import forward_flops
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, AtMost, Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend
from vitreous.layers.performer import LinearAttend, PositiveFeatures

CLAIM = Claim(
    title="Performer's random features",
    statement="Attention is approximated by random cosine features φ of queries and keys, far fewer of them than the "
    "head is wide (r ≪ d), which reduces the cost from n²d to nrd.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\phi(x) = \sqrt{2/r} \, [\cos(\omega_1^\top x + b_1), \ldots, \cos(\omega_r^\top x + b_r)]",
    right="Cosines approximate a Gaussian kernel instead of the softmax's, and nearly half of their weights are "
    "negative where entries have variance 1. Performer's features are exponentials, whose relative error decreases as "
    "1/√r and grows exponentially with the squared norm of the vectors; the figure divides by the error of uniform "
    "attention, which grows too. The cost is lower only for n > 2r.",
    right_formula=r"\phi(x) = \exp(W x' - \|x'\|^2 / 2) / \sqrt{r}, \quad x' = x / d^{1/4}",
    meaning="With fewer features than dimensions the approximation fails. Even positive features beat uniform "
    "attention only where queries and keys are short: with entries of variance 1 a thousand features do not. Do not "
    "expect to swap them into a trained model; train with them, and only where there are many more tokens than "
    "features.",
    axes=Axes("features r", "error ÷ that of uniform attention", log="xy"),
)
TOKENS, WIDTH = 128, 64
SHORT, USUAL = 0.25, 1.0  # standard deviation of the entries of queries and keys; √d assumes 1


def right(sigma: float, r: int) -> float:
    """For short vectors: relative deviation of the estimated weights, divided by that of the true ones (σ²)."""
    length = sigma**2 * math.sqrt(WIDTH)
    return math.sqrt((math.exp(2 * length) - math.exp(length)) / r) / sigma**2


def right_macs(n: int, r: int) -> float:
    """MACs as a share of full attention's: four products of n·r·d instead of two of n²d."""
    return 2 * r / n


def cosine_floor() -> float:
    """Error of the Gaussian kernel for short vectors.

    It adds −‖k‖²/(2√d) to the logits, with deviation σ²/√2, against σ² of the logits themselves.
    """
    return 1 / math.sqrt(2)


def cosine_weights(q: Tensor, k: Tensor, r: int) -> Tensor:
    """Weights from the text's features, scaled so that q·k becomes softmax's q·k/√d."""
    directions, phases = torch.randn(r, WIDTH), 2 * math.pi * torch.rand(r)
    on_queries, on_keys = (math.sqrt(2 / r) * (x * WIDTH**-0.25 @ directions.T + phases).cos() for x in (q, k))
    products = on_queries @ on_keys.T
    return products / products.sum(-1, keepdim=True)


def positive_weights(q: Tensor, k: Tensor, r: int) -> Tensor:
    """Weights from the library's Performer features."""
    features = PositiveFeatures(WIDTH, r)
    return LinearAttend().weights(features(q), features(k))


WEIGHTS = {"cosines": cosine_weights, "exponentials": positive_weights}


def estimated_and_true(kind: str, sigma: float, r: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weights estimated from the features and softmax weights, for random queries and keys."""
    with seeded(seed), torch.no_grad():
        q, k = (sigma * torch.randn(TOKENS, WIDTH) for _ in range(2))
        return WEIGHTS[kind](q, k, r), Attend().weights(q, k)


def error(kind: str, sigma: float, r: int, seed: int) -> float:
    """Median error of a row, divided by that of uniform weights."""
    estimated, true = estimated_and_true(kind, sigma, r, seed)
    feature_error, uniform_error = (
        (x - true).abs().sum(-1).median() for x in (estimated, torch.full_like(true, 1 / TOKENS))
    )
    return float(feature_error / uniform_error)


def share_of_negative(kind: str, sigma: float, r: int, seed: int) -> float:
    estimated, _ = estimated_and_true(kind, sigma, r, seed)
    return float((estimated < 0).double().mean())


def measured_macs(n: int, r: int) -> float:
    x = torch.zeros(1, 1, n, WIDTH)
    with seeded(0):
        features = PositiveFeatures(WIDTH, r)
    linear = 2 * forward_flops(features, x) + forward_flops(LinearAttend(), features(x), features(x), x)
    return linear / forward_flops(Attend(), x, x, x)


def cases(trial: Trial) -> Iterator[Case]:
    counts = trial.choose(quick=(16, 64, 256), full=(16, 64, 256, 1024))
    for kind, sigma in (("cosines", SHORT), ("cosines", USUAL), ("exponentials", SHORT), ("exponentials", USUAL)):
        for r in counts:
            short = AtLeast(cosine_floor()) if kind == "cosines" else near(right(sigma, r), share=0.35)
            yield Case(
                f"{kind}, entries of deviation {sigma:g}, {r} features",
                trial.repeat(partial(error, kind, sigma, r)),
                document=AtMost(1.0) if kind == "cosines" and r < WIDTH else None,
                right=short if sigma == SHORT else AtLeast(1.0),
                at=r,
                group=f"{kind}, σ = {sigma:g}",
            )
    for kind, expected in (("cosines", Near(0.5, 0.1)), ("exponentials", Near(0.0, 1e-9))):
        shares = trial.repeat(partial(share_of_negative, kind, USUAL, 16))
        expected_by_text = Near(0.0, 0.01) if kind == "cosines" else None
        yield Case(
            f"{kind}, entries of deviation 1, 16 features: share of negative weights",
            shares,
            document=expected_by_text,
            right=expected,
        )
    for r in (16, 256):
        macs = exactly(measured_macs(197, r))
        label = f"MACs with {r} features and 197 tokens, as a share of full attention's"
        fewer = AtMost(1.0) if r < WIDTH else None
        yield Case(label, macs, document=fewer, right=near(right_macs(197, r), share=0.02))
