"""How to measure on a machine that others share: rivals take turns, round by round, and only ratios count."""

from __future__ import annotations

import random
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


def interleave_for(
    budget: float, contestants: Mapping[str, Callable[[], object]], fewest: int = 5, turn: float = 0.1
) -> dict[str, list[float]]:
    """Seconds of every contestant in as many rounds as begin within ``budget`` seconds, and at least ``fewest``.

    The order changes from round to round, so that nobody always follows the same rival. Who is quick runs until its
    turn of ``turn`` seconds is over and the best pass counts: the first finds the caches full of somebody else's
    weights, and perhaps somebody else's threads still spinning.
    """
    order, draws = list(contestants), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    rounds, end = 0, time.perf_counter() + budget
    while rounds < fewest or time.perf_counter() < end:
        draws.shuffle(order)
        for name in order:
            seconds[name].append(best_pass(contestants[name], turn))
        rounds += 1
    return seconds


def best_pass(run: Callable[[], object], turn: float) -> float:
    passes: list[float] = []
    while sum(passes) < turn:
        start = time.perf_counter()
        run()
        passes.append(time.perf_counter() - start)
    return min(passes)


def speed_up(seconds: Mapping[str, list[float]], baseline: str) -> dict[str, tuple[float, float]]:
    """(by minimum, by median): how many times faster than the baseline."""
    return {
        name: (min(seconds[baseline]) / min(times), statistics.median(seconds[baseline]) / statistics.median(times))
        for name, times in seconds.items()
    }


def spread(seconds: Mapping[str, list[float]], baseline: str) -> dict[str, tuple[float, float, float]]:
    """(lower quartile, median, upper quartile) of how many times faster than the baseline in the same round.

    What slows a whole round down leaves the ratio within it alone.
    """
    found = {}
    for name, times in seconds.items():
        ratios = [theirs / own for theirs, own in zip(seconds[baseline], times, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        found[name] = (low, median, high)
    return found
