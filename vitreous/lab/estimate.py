"""A measured number with the interval that it lies in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: How sure an interval is.
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval, which is a point where nothing was left to chance."""

    value: float
    low: float
    high: float
    samples: int = 1

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"an estimate lies inside its interval, got {self.value} in {self.low} … {self.high}")


def exactly(value: float) -> Estimate:
    """Something counted or computed without chance."""
    return Estimate(float(value), float(value), float(value))


def mean_of(samples: Sequence[float]) -> Estimate:
    """The mean of independent samples, one per seed, with Student's interval mean ± t · s / √n."""
    from scipy.stats import t

    values = np.asarray(samples, dtype=np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        raise ValueError("one sample has no interval; measure with two seeds or more, or call it exactly(value)")
    margin = float(t.ppf(0.5 + LEVEL / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(mean, mean - margin, mean + margin, len(values))


def bootstrap(
    rows: Sequence[Any] | NDArray[Any],
    statistic: Callable[[NDArray[Any]], float],
    *,
    seed: int = 0,
    rounds: int = 2000,
) -> Estimate:
    """Any statistic of rows, with the interval of its percentiles when the rows are drawn again with replacement."""
    values = np.asarray(rows)
    draws = np.random.default_rng(seed)
    drawn = [statistic(values[draws.integers(0, len(values), len(values))]) for _ in range(rounds)]
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = float(statistic(values))
    return Estimate(value, min(float(low), value), max(float(high), value), len(values))
