"""Interleaved timing for shared machines: candidates alternate round by round, and only ratios are reported."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping


def interleave(candidates: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, list[float]]:
    """Return the seconds of every candidate in every round, after one warm-up round."""
    for run in candidates.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def interleave_for(
    budget: float, candidates: Mapping[str, Callable[[], object]], fewest: int = 5, turn: float = 0.1
) -> dict[str, list[float]]:
    """Return the seconds of every candidate for as many rounds as start within ``budget`` seconds.

    At least ``fewest`` rounds are run, each in a random order, so that no candidate always follows the same one. In a
    round a candidate repeats for ``turn`` seconds and its best pass counts: the first one may suffer from caches filled
    by the previous candidate, or from its threads still spinning.
    """
    order, draws = list(candidates), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    rounds, end = 0, time.perf_counter() + budget
    while rounds < fewest or time.perf_counter() < end:
        draws.shuffle(order)
        for name in order:
            seconds[name].append(best_pass(candidates[name], turn))
        rounds += 1
    return seconds


def best_pass(run: Callable[[], object], turn: float) -> float:
    """Repeat ``run`` for ``turn`` seconds and return its shortest time."""
    passes: list[float] = []
    while sum(passes) < turn:
        start = time.perf_counter()
        run()
        passes.append(time.perf_counter() - start)
    return min(passes)


def speed_up(seconds: Mapping[str, list[float]], baseline: str) -> dict[str, tuple[float, float]]:
    """Speed-up over the baseline, by minimum and by median."""
    return {
        name: (min(seconds[baseline]) / min(times), statistics.median(seconds[baseline]) / statistics.median(times))
        for name, times in seconds.items()
    }


def spread(seconds: Mapping[str, list[float]], baseline: str) -> dict[str, tuple[float, float, float]]:
    """Lower quartile, median and upper quartile of the speed-up over the baseline within each round.

    Slowdowns of a whole round cancel in these ratios.
    """
    quartiles = {}
    for name, times in seconds.items():
        ratios = [baseline_time / own_time for baseline_time, own_time in zip(seconds[baseline], times, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        quartiles[name] = (low, median, high)
    return quartiles
