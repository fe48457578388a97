"""The learning rate as a formula of the step, so that a resumed run needs no state of it.

    warm-up    s < W     (s + 1) / W
    cosine     s ≥ W     f + (1 − f) · ½ (1 + cos π p)        p = (s − W) / (S − W)
    linear     s ≥ W     f + (1 − f) · (1 − p)
    steps      s ≥ W     1, ⅒, 1⁄100, … at each third of S (ResNet's)
    constant   s ≥ W     1

with S steps in all, W of them warm-up, and f the share of the rate where the schedule ends. The cosine falls to zero
once and stays positive: without the ½(1 + …) it would turn negative halfway.

A schedule is chosen like a mixer: by name, by its options, or by their JSON.
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
    """Options of a schedule. A kind of its own implements :meth:`decayed`."""

    key: ClassVar[str] = "schedule"
    warmup: Share = 0.05  # share of the steps in which the rate rises

    @classmethod
    def table(cls) -> Mapping[str, Schedule]:
        return SCHEDULES

    def rate(self, step: int, total: int) -> float:
        """The share of the highest learning rate at a step, counted from 0."""
        warmup = round(self.warmup * total)
        return (step + 1) / warmup if step < warmup else self.decayed(step, total, warmup)

    @abstractmethod
    def decayed(self, step: int, total: int, warmup: int) -> float:
        """The same after ``warmup`` steps."""


def progress(step: int, total: int, warmup: int) -> float:
    """From 0 after the warm-up to 1 at the end."""
    return min(1.0, (step - warmup) / max(1, total - warmup))


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    name: ClassVar[str] = "cosine"
    final: Share = 0.0  # share of the highest rate at the end

    def decayed(self, step: int, total: int, warmup: int) -> float:
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress(step, total, warmup)))


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    name: ClassVar[str] = "linear"
    final: Share = 0.0  # share of the highest rate at the end

    def decayed(self, step: int, total: int, warmup: int) -> float:
        return self.final + (1 - self.final) * (1 - progress(step, total, warmup))


@dataclass(frozen=True, kw_only=True)
class Steps(Schedule):
    name: ClassVar[str] = "steps"

    def decayed(self, step: int, total: int, warmup: int) -> float:
        return 10.0 ** -min(2, 3 * step // total)


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    name: ClassVar[str] = "constant"

    def decayed(self, step: int, total: int, warmup: int) -> float:
        return 1.0


SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in (Cosine(), Linear(), Steps(), Constant())}
