"""Compare runs of the sweep, with confidence intervals from few seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vitreous.lab.claim import Case
from vitreous.lab.estimate import LEVEL, Estimate
from vitreous.lab.prediction import AtLeast
from vitreous.lab.trained import Trained, trained_runs
from vitreous.lab.trial import Trial

Accuracies = Sequence[float]  # of one run, one per seed


def accuracies(trial: Trial, name: str) -> list[float]:
    """Return a run's validation accuracy for each seed."""
    return [run.accuracy for run in trained_runs(trial, name)]


def difference(one: Accuracies, other: Accuracies, *, among: Sequence[Accuracies], images: int) -> Estimate:
    """Estimate mean(one) − mean(other)."""
    return contrast({1: [one], -1: [other]}, among=among, images=images)


def contrast(terms: Mapping[int, Sequence[Accuracies]], *, among: Sequence[Accuracies], images: int) -> Estimate:
    """Estimate Σ sign · mean(group), with an interval over seeds and validation images.

    Two or three seeds estimate their variance poorly, so it is pooled over the groups in ``among``:
    s² = Σ (x − group mean)² / Σ (group size − 1). The variance of each group mean is s² / seeds plus the binomial
    variance of an accuracy a on the validation ``images``, a (1 − a) / images.
    """
    from scipy.stats import t

    degrees = sum(len(group) - 1 for group in among)
    if degrees < 1:
        raise ValueError("estimating the variance between seeds needs a group of at least two runs")
    spread = sum(((np.asarray(group) - np.mean(group)) ** 2).sum() for group in among) / degrees
    groups = [group for members in terms.values() for group in members]
    value = float(sum(sign * np.mean(group) for sign, members in terms.items() for group in members))
    by_seeds = spread * sum(1 / len(group) for group in groups)
    by_images = sum(np.mean(group) * (1 - np.mean(group)) for group in groups) / images
    margin = float(np.hypot(t.ppf(0.5 + LEVEL / 2, degrees) * by_seeds**0.5, 1.96 * by_images**0.5))
    return Estimate(value, value - margin, value + margin, sum(len(group) for group in groups))


def accuracy_of(run: Trained) -> Estimate:
    """Estimate a run's accuracy, with the binomial interval of its validation images."""
    margin = 1.96 * float(np.sqrt(run.accuracy * (1 - run.accuracy) / len(run.valid)))
    return Estimate(run.accuracy, run.accuracy - margin, run.accuracy + margin, len(run.valid))


def above_chance(run: Trained, name: str) -> Case:
    """Check that a run learned at all: accuracy of at least 0.2 on ten classes, where chance is 0.1."""
    return Case(f"accuracy of {name} (guessing: 0.1)", accuracy_of(run), right=AtLeast(0.2))
