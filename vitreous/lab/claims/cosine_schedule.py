"""A cosine schedule decays to zero once, over the steps after the warm-up; a bare cosine ends at minus the rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trial import Trial
from vitreous.train.schedule import Cosine

CLAIM = Claim(
    title="The cosine schedule",
    statement="After a linear warm-up the learning rate follows a cosine over the rest of training: η · cos(π p), p "
    "from 0 to 1. In torch: CosineAnnealingLR with T_max = epochs − warm-up, for 10,000 warm-up steps.",
    sources=(Source.FOUNDATIONS, Source.DEEP_DIVE),
    formula=r"\eta(t) = \eta_{base} \cos(\pi p), \quad p = \frac{t - T_{warmup}}{T_{total} - T_{warmup}}",
    right="Half a cosine, shifted to stay positive: it decays from η to its final value once. All times must "
    "have one unit, the step: 300 epochs less 10,000 steps mix two units.",
    right_formula=r"\eta(t) = \eta_{min} + \frac{1}{2} (\eta_{base} - \eta_{min}) (1 + \cos \pi p)",
    meaning="A negative rate ascends the loss: the second half of training undoes the first. And a decay measured "
    "in the wrong unit never happens: the rate is still at 99.8 % when training ends. Plot the schedule before a long "
    "run.",
    axes=Axes("share of training", "learning rate, share of the peak"),
)
TOTAL, WARMUP = 1000, 100
EPOCHS, WARMUP_STEPS = 300, 10_000  # of the recipe that subtracts one from the other


def document(step: int) -> float:
    if step <= WARMUP:
        return step / WARMUP
    return round(math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)), 9)


def right(step: int) -> float:
    if step <= WARMUP:
        return step / WARMUP
    return (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP))) / 2


def library(step: int) -> float:
    return Cosine(warmup=WARMUP / TOTAL).rate(step, TOTAL)


def left_over(epochs: int, period: int) -> float:
    """Share of the rate left after ``epochs`` of half a cosine of length ``period``, whose sign drops out."""
    return (1 + math.cos(math.pi * epochs / period)) / 2


def rate_at_the_end(epochs: int, period: int) -> float:
    """Final rate of torch's scheduler, stepped once per epoch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=period)
    for _ in range(epochs):
        optimizer.step()
        scheduler.step()
    return float(optimizer.param_groups[0]["lr"])


def error_left(schedule: Callable[[int], float]) -> float:
    """Distance from the minimum after gradient descent on w²/2, whose gradient is w, from w = 1."""
    w = 1.0
    for step in range(TOTAL):
        w -= 0.01 * schedule(step) * w
    return abs(w)


def cases(trial: Trial) -> Iterator[Case]:
    steps = trial.choose(quick=(50, 100, 325, 550, 775, 1000), full=(50, *range(100, 1001, 100)))
    for step in steps:
        yield Case(f"rate at step {step:,} of {TOTAL:,}", exactly(library(step)), document=Near(document(step), 0.02),
                   right=Near(right(step), 0.02), at=step / TOTAL)  # fmt: skip
    period = EPOCHS - WARMUP_STEPS
    yield Case("rate after 300 epochs with T_max = 300 − 10,000", exactly(rate_at_the_end(EPOCHS, period)),
               document=Near(0.0, 0.02), right=Near(left_over(EPOCHS, period), 0.02))  # fmt: skip
    yield Case("error left by descent with η · cos(π p)", exactly(error_left(document)),
               document=AtMost(0.1), right=AtLeast(0.5))  # fmt: skip
    yield Case("error left by descent with the library's schedule", exactly(error_left(library)), right=AtMost(0.1))
