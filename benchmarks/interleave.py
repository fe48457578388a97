"""How to measure on a machine that others share: rivals take turns, round by round, and only ratios count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleave(contestants: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, list[float]]:
    """Seconds of every contestant in every round, after one round to warm up."""
    for run in contestants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def speed_up(seconds: Mapping[str, list[float]], baseline: str) -> dict[str, tuple[float, float]]:
    """(by minimum, by median): how many times faster than the baseline."""
    return {
        name: (min(seconds[baseline]) / min(times), statistics.median(seconds[baseline]) / statistics.median(times))
        for name, times in seconds.items()
    }
