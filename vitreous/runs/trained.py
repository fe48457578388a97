"""A finished run: the trained model, ready to use, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vitreous.deploy.predictor import Predictor
from vitreous.models.base import Model
from vitreous.runs.choose import Choice
from vitreous.train.loop import Outcome


@dataclass(frozen=True, kw_only=True)
class TrainResult(Outcome):
    """What :func:`vitreous.train` returns: the best model in evaluation mode, its metrics, and the run's folder.

    >>> result = vt.train("vit_tiny_16", dataset)
    >>> print(result)                            # metrics, what was chosen and why, what was noticed
    >>> result.predictor()("photo.jpg")
    """

    model: Model = field(repr=False)
    folder: Path
    chosen: tuple[Choice, ...] = field(default=(), repr=False)  # settings that nobody gave, each with its reason
    notes: tuple[str, ...] = field(default=(), repr=False)  # about data and weights

    @classmethod
    def of(
        cls, outcome: Outcome, model: Model, folder: Path, chosen: tuple[Choice, ...], notes: tuple[str, ...]
    ) -> TrainResult:
        known = {each.name: getattr(outcome, each.name) for each in fields(Outcome)}
        return cls(**known, model=model, folder=folder, chosen=chosen, notes=notes)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.model.spec.labels.names

    def predictor(self, **options: Any) -> Predictor:
        """A :class:`Predictor` for the model, with its options: ``predictor(top=3, engine="auto")``."""
        return Predictor(self.model, **options)

    def __str__(self) -> str:
        lines = [f"{type(self.model).__name__} for {len(self.classes)} classes, in {self.folder}"]
        if self.meter is not None:
            shown = ", ".join(f"{name} {value}" for name, value in list(self.metrics.items())[:4])
            lines.append(f"  {shown} on {len(self.meter):,} validation images")
        lines.append(f"  {self.images:,} images in {self.steps:,} steps and {self.seconds:.1f} seconds")
        lines += [f"  {choice.setting}: {choice.value}, because {choice.reason}" for choice in self.chosen]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
