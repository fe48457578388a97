"""Stochastic depth drops branches per image and rescales the kept ones, so that the expectation is unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import Near
from vitreous.lab.trial import Trial
from vitreous.layers.drop import DropPath

CLAIM = Claim(
    title="Stochastic depth (DropPath)",
    statement="Stochastic depth multiplies a residual branch by a coin: x + Bernoulli(p) · F(x), and that is all. In "
    "code it is one coin for the batch: if a random number is small enough, the block returns its input.",
    sources=(Source.FOUNDATIONS, Source.MODERN),
    formula=r"x_{l+1} = x_l + \mathrm{Bernoulli}(p) \cdot F(x_l)",
    right="With p the drop rate, the draw is 1 with probability 1 − p, a kept branch is divided by 1 − p, every "
    "image has its own draw, and evaluation changes nothing.",
    right_formula=r"x_{l+1} = x_l + \frac{b}{1 - p} F(x_l), \quad b \sim \mathrm{Bernoulli}(1 - p)",
    meaning="Without the division every branch is stronger in evaluation than in training, by 1/(1 − p). With one "
    "draw for the whole batch, a step's gradient lacks whole blocks: the noise does not average out over the batch.",
)
BATCH = 8  # images
BATCHES = 500


def average_without_division(rate: float) -> float:
    """Mean of a draw that is 1 unless the branch is dropped."""
    return 1 - rate


def average_with_division(rate: float) -> float:
    return (1 - rate) / (1 - rate)


def one_draw_for_all(rate: float) -> float:
    """Share of batches in which all images share one outcome."""
    return 1.0


def one_draw_each(rate: float) -> float:
    return float((1 - rate) ** BATCH + rate**BATCH)


def gates(rate: float, seed: int) -> Tensor:
    """Factors that multiply each image's branch in training, (batches, images)."""
    drop = DropPath(rate).train()
    with seeded(seed):
        dropped = [drop(torch.ones(BATCH, 2, 3)) for _ in range(BATCHES)]
    return torch.stack(dropped)[:, :, 0, 0]


def kept(drawn: Tensor) -> float:
    return float((drawn > 0).double().mean())


def average(drawn: Tensor) -> float:
    return float(drawn.double().mean())


def same_outcome(drawn: Tensor) -> float:
    return float(((drawn > 0) == (drawn[:, :1] > 0)).all(dim=1).double().mean())


def cases(trial: Trial) -> Iterator[Case]:
    for rate in trial.choose(quick=(0.2,), full=(0.1, 0.2, 0.4)):
        drawn = [gates(rate, seed) for seed in trial.seeds]
        for what, measure, document, right in (
            ("branches that are kept", kept, average_without_division, average_without_division),
            ("strength of a branch on average", average, average_without_division, average_with_division),
            (f"batches of {BATCH} with one outcome for all", same_outcome, one_draw_for_all, one_draw_each),
        ):
            measured = mean_of([measure(each) for each in drawn])
            label = f"p = {rate:g}: {what}"
            yield Case(label, measured, document=Near(document(rate), 0.05), right=Near(right(rate), 0.05))
    alone = DropPath(0.5).eval()(torch.ones(BATCH, 2, 3))
    yield Case("strength of every branch in evaluation", exactly(float(alone.mean())), right=Near(1.0, 1e-6))
