"""How runs of the sweep compare, with intervals that a few seeds can give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vitreous.lab.claim import Case
from vitreous.lab.estimate import LEVEL, Estimate
from vitreous.lab.prediction import AtLeast
from vitreous.lab.trained import Trained, every
from vitreous.lab.trial import Trial

Accuracies = Sequence[float]  # of one kind of run, one for each seed


def accuracies(trial: Trial, name: str) -> list[float]:
    """On validation images, one for each seed."""
    return [run.accuracy for run in every(trial, name)]


def difference(one: Accuracies, other: Accuracies, *, among: Sequence[Accuracies], images: int) -> Estimate:
    """mean(one) − mean(other), with its interval."""
    return contrast({1: [one], -1: [other]}, among=among, images=images)


def contrast(terms: Mapping[int, Sequence[Accuracies]], *, among: Sequence[Accuracies], images: int) -> Estimate:
    """Σ sign · mean of a group of runs, with an interval for other seeds and other validation images.

    Two or three seeds say little about their own spread. All groups ``among`` which these stand say more, so their
    spread is pooled: s² = Σ (x − its group's mean)² / Σ (size of group − 1). To its part of the variance, s² / seeds,
    comes that of the number of ``images``, a (1 − a) / images for an accuracy a.
    """
    from scipy.stats import t

    freedom = sum(len(group) - 1 for group in among)
    if freedom < 1:
        raise ValueError("a spread between seeds needs a group of two runs or more")
    spread = sum(((np.asarray(group) - np.mean(group)) ** 2).sum() for group in among) / freedom
    groups = [group for members in terms.values() for group in members]
    value = float(sum(sign * np.mean(group) for sign, members in terms.items() for group in members))
    by_seeds = spread * sum(1 / len(group) for group in groups)
    by_images = sum(np.mean(group) * (1 - np.mean(group)) for group in groups) / images
    margin = float(np.hypot(t.ppf(0.5 + LEVEL / 2, freedom) * by_seeds**0.5, 1.96 * by_images**0.5))
    return Estimate(value, value - margin, value + margin, sum(len(group) for group in groups))


def accuracy_of(run: Trained) -> Estimate:
    """One run's accuracy, with the interval that the number of its validation images leaves."""
    margin = 1.96 * float(np.sqrt(run.accuracy * (1 - run.accuracy) / len(run.valid)))
    return Estimate(run.accuracy, run.accuracy - margin, run.accuracy + margin, len(run.valid))


def learned(run: Trained, name: str) -> Case:
    """Whether an experiment can be believed at all: one of ten classes, so that guessing gives 0.1."""
    return Case(f"accuracy of {name} (guessing: 0.1)", accuracy_of(run), right=AtLeast(0.2))
