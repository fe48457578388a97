"""Without √d the softmax saturates: the gradient of a typical query shrinks with the width, slowly at usual widths."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import Estimate, bootstrap
from vitreous.lab.instruments.real import deit_tiny, photos, traces
from vitreous.lab.prediction import AtMost, Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend

CLAIM = Claim(
    title="Softmax without the square root",
    statement="Dot products grow with the width d of a head. Without the division by √d they saturate the softmax and "
    "its gradients become tiny; with it they stay in a reasonable range.",
    sources=(Source.DEEP_DIVE, Source.FOUNDATIONS),
    formula=r"\mathrm{softmax}(q^\top k / \sqrt{d})",
    right="With √d the gradient is the same at every width. Without it that of a typical query shrinks, slowly "
    "for random queries (at a width of 64 more than half is left) and fast for the wider logits of a trained model. "
    "The root mean square over random queries decreases only about like the fourth root of d, since for some queries "
    "the two largest logits are always close.",
    right_formula=r"z_j = |q| \, \epsilon_j, \quad |q|^2 \sim \chi^2_d",
    meaning="Keep √d. With random queries of usual width the gradient survives without it, so that the mistake "
    "need not show at first; with the sharper logits of a trained model most queries get almost no gradient.",
    axes=Axes("head width d", "gradient at a query's logits", log="xy"),
)
KEYS = 64
VANISHED = 0.1  # share of the gradient with √d

Statistic = Callable[[NDArray[np.float64]], float]


def root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def median(values: NDArray[np.float64]) -> float:
    return float(np.median(values))


def right(d: int, scaled: bool, statistic: Statistic, queries: int = 20_000) -> float:
    """Gradient of softmax for logits |q| · ε with |q|² from χ² with d degrees of freedom, without dot products."""
    draws = np.random.default_rng(0)
    length = np.sqrt(draws.chisquare(d, (queries, 1)) / (d if scaled else 1))
    powers = np.exp((logits := length * draws.standard_normal((queries, KEYS))) - logits.max(axis=1, keepdims=True))
    weights, values = powers / powers.sum(axis=1, keepdims=True), draws.standard_normal((queries, KEYS))
    return statistic(np.linalg.norm(weights * (values - (weights * values).sum(axis=1, keepdims=True)), axis=1))


def gradients(q: Tensor, k: Tensor, *, scaled: bool, seed: int) -> NDArray[np.float64]:
    """|∂ output / ∂ logits| of each query, through the library's attention; the gradient is taken at a bias of 0."""
    draws = torch.Generator().manual_seed(seed)
    logits = torch.zeros(*q.shape[:-1], k.shape[-2], requires_grad=True)
    values = torch.randn(*k.shape[:-1], 1, generator=draws)
    Attend(scaled=scaled)(q, k, values, bias=logits).sum().backward()
    assert logits.grad is not None
    return logits.grad.norm(dim=-1).flatten().double().numpy()


def measure(d: int, scaled: bool, seed: int) -> NDArray[np.float64]:
    """Gradients of 512 queries with entries of variance 1, eight queries per set of keys."""
    draws = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(64, number, d, generator=draws) for number in (8, KEYS))
    return gradients(q, k, scaled=scaled, seed=seed + 1000)


def cases(trial: Trial) -> Iterator[Case]:
    widths = trial.choose(quick=(16, 64, 1024), full=(4, 16, 64, 256, 1024))
    with_root = right(1024, True, median)
    for name, scaled, statistic in (
        ("with √d, typical query", True, median),
        ("without √d, typical query", False, median),
        ("without √d, root mean square over queries", False, root_mean_square),
    ):
        for d in widths:
            found = np.concatenate([measure(d, scaled, seed) for seed in trial.seeds])
            yield Case(
                f"{name}, d = {d}",
                bootstrap(found, statistic, rounds=300),
                document=text_prediction(d, scaled, with_root),
                right=near(right(d, scaled, statistic), share=0.4),
                at=d,
                group=name,
            )
    if trial.has("weights"):
        yield Case(
            "trained DeiT-Tiny, d = 64: gradient without √d ÷ with it, typical query",
            real_ratio(trial),
            document=AtMost(VANISHED),
        )


def text_prediction(d: int, scaled: bool, with_root: float) -> Near | AtMost | None:
    """With √d the same at every width; without it vanished at the usual head widths and above."""
    if scaled:
        return near(with_root, share=0.25)
    return AtMost(VANISHED * with_root) if d >= 64 else None


def real_ratio(trial: Trial) -> Estimate:
    """Ratio of median gradients over the queries of every block and head; the interval is over heads."""
    images, _ = photos(trial, trial.choose(2, 16))
    ratios = []
    for trace in traces(deit_tiny(trial), images, "q", "k"):
        for attention in trace.values():
            with_root, without = (gradients(attention.q, attention.k, scaled=s, seed=0) for s in (True, False))
            shape = (*attention.q.shape[:2], -1)
            ratios.append(np.median(without.reshape(shape), axis=-1) / np.median(with_root.reshape(shape), axis=-1))
    return bootstrap(np.concatenate(ratios).flatten(), median)
