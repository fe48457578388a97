"""Rank and spectrum of trained attention: low only in late blocks, where rows are similar."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.explain import measures
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly
from vitreous.lab.instruments.real import deit_tiny, photos, traces
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend

CLAIM = Claim(
    title="The rank of attention in a trained model",
    statement="The attention matrix has a rank far below the number of tokens n, which shows that attention focuses on "
    "a small number of positions.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\mathrm{rank}(A) \ll n",
    right="Numerically the rank is full even in the last block. The effective rank, exp of the entropy of the "
    "normalized singular values, is low in late blocks and high in early ones. It is low where the rows are similar, "
    "uniform or concentrated on the same few keys, so it does not show focus.",
    right_formula=r"\mathrm{erank}(A) = \exp(-\sum_i p_i \ln p_i), \quad p_i = \sigma_i / \sum_j \sigma_j",
    meaning="Low-rank approximations should fit late blocks better than early ones (not measured here). Do not "
    "read a low rank as focus: measure the entropy.",
    axes=Axes("block", "effective rank ÷ tokens"),
)
LOW = 0.25  # of the tokens: a generous reading of "far below"


def right(n: int, attends_to: str) -> float:
    """Effective rank of n queries that each attend to a different token ("one") or all uniformly ("all")."""
    return {"one": float(n), "all": 1.0}[attends_to]


def synthetic(n: int, sharpness: float) -> Tensor:
    """Attention in which each token prefers itself, more so with larger ``sharpness``."""
    one_hot = torch.eye(n, dtype=torch.float64)
    return Attend(scaled=False).weights(sharpness * one_hot, one_hot)


def rank_correlation(rows: NDArray[np.float64]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(rows[:, 0], rows[:, 1]).statistic)


def cases(trial: Trial) -> Iterator[Case]:
    n = 64
    for name, sharpness in (("all", 0.0), ("one", 50.0)):
        yield Case(
            f"{n} tokens that attend to {'everything' if name == 'all' else 'one token each'}: effective rank",
            exactly(float(measures.effective_rank(synthetic(n, sharpness)))),
            document=AtLeast(LOW * n) if name == "all" else None,
            right=Near(right(n, name), 1e-3),
        )
    rows = [rank_and_focus(synthetic(n, sharpness)) for sharpness in np.linspace(0.5, 8, 10)]
    yield Case(
        "from broad to sharp attention: correlation of effective rank with the number of tokens attended to",
        exactly(rank_correlation(np.array(rows))),
        document=AtLeast(0.0),
        right=Near(-1.0, 1e-6),
    )
    if trial.has("weights"):
        yield from real_cases(trial)


def rank_and_focus(whole: Tensor) -> tuple[float, float]:
    """Effective rank of a head, and the mean number of tokens its queries attend to."""
    return float(measures.effective_rank(whole)), float(measures.entropy(whole).exp().mean())


def real_cases(trial: Trial) -> Iterator[Case]:
    images, _ = photos(trial, trial.choose(2, 12))
    wholes: dict[str, list[Tensor]] = {}
    outlier_shares = []
    for trace in traces(deit_tiny(trial), images, "weights", "norms"):
        outlier_shares.append(measures.outliers(trace.norms["blocks.11"]).double().mean(dim=1).numpy())
        for block, whole in trace.token_matrices().items():
            wholes.setdefault(block, []).append(whole)
    heads: list[tuple[float, float]] = []
    for number, parts in enumerate(wholes.values(), start=1):
        whole = torch.cat(parts)
        found = [rank_and_focus(head) for head in whole.flatten(0, 1)]
        heads += found
        ranks = np.array(found)[:, 0].reshape(len(whole), -1) / whole.shape[-1]
        yield Case(
            f"DeiT-Tiny, block {number}: effective rank ÷ tokens",
            bootstrap(ranks.mean(axis=1), lambda drawn: float(drawn.mean())),
            document=AtMost(LOW),
            at=number,
            group="DeiT-Tiny",
        )
    yield Case(
        "DeiT-Tiny, all heads: correlation of effective rank with the number of tokens attended to",
        bootstrap(heads, rank_correlation, rounds=500),
        document=AtLeast(0.0),
    )
    yield Case(
        "DeiT-Tiny, last block: share of tokens whose norm is over three times the median (outliers)",
        bootstrap(np.concatenate(outlier_shares), lambda drawn: float(drawn.mean())),
        right=AtMost(0.05),
    )
    numerical = measures.rank(wholes["blocks.11"][0][:1].double())
    yield Case(
        "DeiT-Tiny, last block: numerical rank ÷ tokens",
        exactly(float(numerical.double().mean()) / wholes["blocks.11"][0].shape[-1]),
        document=AtMost(LOW),
        right=Near(1.0, 1e-6),
    )
