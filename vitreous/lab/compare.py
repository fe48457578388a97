"""How runs of the sweep compare, with intervals that a few seeds can give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitreous.lab.claim import Case
from vitreous.lab.estimate import LEVEL, Estimate
from vitreous.lab.prediction import AtLeast
from vitreous.lab.sweep import Trained, every
from vitreous.lab.trial import Trial


def accuracies(trial: Trial, name: str) -> list[float]:
    """On validation pictures, one for each seed."""
    return [run.accuracy for run in every(trial, name)]


def difference(one: Sequence[float], other: Sequence[float], *, groups: Sequence[Sequence[float]]) -> Estimate:
    """mean(one) − mean(other), with Student's interval.

    Two or three seeds say little about their own spread. All ``groups`` of runs together say more, so their spread
    between seeds is pooled: s² = Σ (x − its group's mean)² / Σ (size of group − 1).
    """
    from scipy.stats import t

    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        raise ValueError("a spread between seeds needs a group of two runs or more")
    variance = sum(((np.asarray(group) - np.mean(group)) ** 2).sum() for group in groups) / freedom
    value = float(np.mean(one) - np.mean(other))
    margin = float(t.ppf(0.5 + LEVEL / 2, freedom) * np.sqrt(variance * (1 / len(one) + 1 / len(other))))
    return Estimate(value, value - margin, value + margin, len(one) + len(other))


def accuracy_of(run: Trained) -> Estimate:
    """One run's accuracy, with the interval that the number of its validation pictures leaves."""
    margin = 1.96 * float(np.sqrt(run.accuracy * (1 - run.accuracy) / len(run.valid)))
    return Estimate(run.accuracy, run.accuracy - margin, run.accuracy + margin, len(run.valid))


def learned(run: Trained, name: str) -> Case:
    """Whether an experiment can be believed at all: one of ten classes, so that guessing gives 0.1."""
    return Case(f"accuracy of {name} (guessing: 0.1)", accuracy_of(run), right=AtLeast(0.2))
