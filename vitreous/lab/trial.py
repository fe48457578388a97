"""Settings of an experiment: quick or full mode, seeds, and optional weights and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from vitreous.lab.estimate import Estimate, mean_of

T = TypeVar("T")


@dataclass
class Trial:
    """The settings and inputs of an experiment; collects data series for the figure and notes on omitted parts."""

    quick: bool = False
    weights: str = ""  # DeiT-Tiny: a file, or a published name
    photos: str = ""  # a folder of class folders
    cifar: str = ""  # the CIFAR-10 folder
    folder: Path = Path("runs/lab")  # for results and trained models
    series: dict[str, list[float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def choose(self, quick: T, full: T) -> T:
        """Return ``quick`` in quick mode, else ``full``."""
        return quick if self.quick else full

    @property
    def seeds(self) -> range:
        """The seeds over which measurements are averaged."""
        return range(self.choose(4, 12))

    def repeat(self, measure: Callable[[int], float], seeds: Sequence[int] | None = None) -> Estimate:
        """Return the mean of ``measure(seed)`` over the seeds, with its interval."""
        return mean_of([measure(seed) for seed in (self.seeds if seeds is None else seeds)])

    def keep(self, name: str, values: Sequence[float]) -> None:
        """Store a data series for the figure."""
        self.series[name] = [float(value) for value in values]

    def has(self, *needs: str) -> bool:
        """Whether the named inputs (weights, photos, cifar) were given; missing ones are noted in the outcome."""
        missing = [name for name in needs if not getattr(self, name)]
        note = f"one part was skipped: it needs --{' and --'.join(missing)}" if missing else ""
        if note and note not in self.left_out:
            self.left_out.append(note)
        return not missing
