"""Measured values with 95 % confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Confidence level of the intervals.
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % confidence interval, which is a single point for deterministic values."""

    value: float
    low: float
    high: float
    samples: int = 1

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"an estimate must lie inside its interval, got {self.value} in {self.low} … {self.high}")


def exactly(value: float) -> Estimate:
    """Return an estimate of a deterministic value, such as a count."""
    return Estimate(float(value), float(value), float(value))


def mean_of(samples: Sequence[float]) -> Estimate:
    """Return the mean of independent samples, one per seed, with Student's t-interval mean ± t · s / √n."""
    from scipy.stats import t

    values = np.asarray(samples, dtype=np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        raise ValueError("one sample has no interval; measure with two seeds or more, or use exactly(value)")
    margin = float(t.ppf(0.5 + LEVEL / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(mean, mean - margin, mean + margin, len(values))


def bootstrap(
    rows: Sequence[Any] | NDArray[Any],
    statistic: Callable[[NDArray[Any]], float],
    *,
    seed: int = 0,
    rounds: int = 2000,
) -> Estimate:
    """Return a statistic of the rows with its percentile bootstrap interval."""
    values = np.asarray(rows)
    draws = np.random.default_rng(seed)
    drawn = [statistic(values[draws.integers(0, len(values), len(values))]) for _ in range(rounds)]
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = float(statistic(values))
    return Estimate(value, min(float(low), value), max(float(high), value), len(values))
