"""How an experiment is run: quickly or in full, with which seeds and which things at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from vitreous.lab.estimate import Estimate, mean_of

T = TypeVar("T")


@dataclass
class Trial:
    """What an experiment may use; it also collects what the figure needs beside the cases, and what was left out."""

    quick: bool = False
    weights: str = ""  # DeiT-Tiny: a file, or a public name
    photos: str = ""  # a folder of images, in folders by class
    cifar: str = ""  # a folder with CIFAR-10
    folder: Path = Path("runs/lab")  # where trained models are kept
    series: dict[str, list[float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def choose(self, quick: T, full: T) -> T:
        return quick if self.quick else full

    @property
    def seeds(self) -> range:
        return range(self.choose(4, 12))

    def repeat(self, measure: Callable[[int], float], seeds: Sequence[int] | None = None) -> Estimate:
        """The mean of ``measure(seed)`` over the seeds, with its interval."""
        return mean_of([measure(seed) for seed in (self.seeds if seeds is None else seeds)])

    def keep(self, name: str, values: Sequence[float]) -> None:
        """Numbers for the figure that are no case."""
        self.series[name] = [float(value) for value in values]

    def has(self, *needs: str) -> bool:
        """Whether weights, photos or CIFAR-10 are at hand; what is missing is said on the page."""
        missing = [name for name in needs if not getattr(self, name)]
        note = f"a part needs --{' and --'.join(missing)}, which were not given" if missing else ""
        if note and note not in self.left_out:
            self.left_out.append(note)
        return not missing
