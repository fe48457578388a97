"""Learning rate schedules, as stateless functions of the step.

    warm-up    s < W     (s + 1) / W
    cosine     s ≥ W     f + (1 − f) · ½ (1 + cos π p)        p = (s − W) / (S − W)
    linear     s ≥ W     f + (1 − f) · (1 − p)
    steps      s ≥ W     1, ⅒, 1⁄100, … at each third of S (as for ResNet)
    constant   s ≥ W     1

as factors of the peak learning rate, with S steps in total, W warm-up steps and the final factor f.

A schedule is chosen by name, as an object, or as JSON.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vitreous.options import Named, Share


@dataclass(frozen=True, kw_only=True)
class Schedule(Named):
    """Base of all schedules: linear warm-up, then :meth:`decayed`, which subclasses implement."""

    key: ClassVar[str] = "schedule"
    warmup: Share = 0.05  # fraction of the steps spent on linear warm-up

    @classmethod
    def table(cls) -> Mapping[str, Schedule]:
        return SCHEDULES

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate at a step, counted from 0, as a fraction of the peak."""
        warmup = round(self.warmup * total)
        return (step + 1) / warmup if step < warmup else self.decayed(step, total, warmup)

    @abstractmethod
    def decayed(self, step: int, total: int, warmup: int) -> float:
        """Return the same for a step at or after ``warmup``."""


def progress(step: int, total: int, warmup: int) -> float:
    """Return the progress after the warm-up, from 0 to 1."""
    return min(1.0, (step - warmup) / max(1, total - warmup))


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half-cosine decay from the peak to ``final``."""

    name: ClassVar[str] = "cosine"
    final: Share = 0.0  # final learning rate as a fraction of the peak

    def decayed(self, step: int, total: int, warmup: int) -> float:
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress(step, total, warmup)))


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """Linear decay from the peak to ``final``."""

    name: ClassVar[str] = "linear"
    final: Share = 0.0  # final learning rate as a fraction of the peak

    def decayed(self, step: int, total: int, warmup: int) -> float:
        return self.final + (1 - self.final) * (1 - progress(step, total, warmup))


@dataclass(frozen=True, kw_only=True)
class Steps(Schedule):
    """Division by 10 after each third of the steps."""

    name: ClassVar[str] = "steps"

    def decayed(self, step: int, total: int, warmup: int) -> float:
        return 10.0 ** -min(2, 3 * step // total)


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak learning rate after the warm-up."""

    name: ClassVar[str] = "constant"

    def decayed(self, step: int, total: int, warmup: int) -> float:
        return 1.0


SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in (Cosine(), Linear(), Steps(), Constant())}
