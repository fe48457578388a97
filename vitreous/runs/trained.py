"""The result of ``vt.train``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vitreous.deploy.predictor import Predictor
from vitreous.models.base import Model
from vitreous.runs.choose import ChosenSetting
from vitreous.train.loop import TrainOutcome


@dataclass(frozen=True, kw_only=True)
class TrainResult(TrainOutcome):
    """The result of :func:`vitreous.train`: the best model in evaluation mode, its metrics, and the run folder.

    >>> result = vt.train("vit_tiny_16", dataset)
    >>> print(result)                            # metrics, chosen settings with reasons, notes
    >>> result.predictor()("photo.jpg")
    """

    model: Model = field(repr=False)
    folder: Path
    chosen: tuple[ChosenSetting, ...] = field(default=(), repr=False)  # automatically chosen settings
    notes: tuple[str, ...] = field(default=(), repr=False)  # about data and weights

    @classmethod
    def of(
        cls,
        outcome: TrainOutcome,
        model: Model,
        folder: Path,
        chosen: tuple[ChosenSetting, ...],
        notes: tuple[str, ...],
    ) -> TrainResult:
        known = {each.name: getattr(outcome, each.name) for each in fields(TrainOutcome)}
        return cls(**known, model=model, folder=folder, chosen=chosen, notes=notes)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the model's outputs."""
        return self.model.spec.labels.names

    def predictor(self, **options: Any) -> Predictor:
        """Create a :class:`Predictor` for the model with these options, as in ``predictor(top=3, engine="auto")``."""
        return Predictor(self.model, **options)

    def __str__(self) -> str:
        lines = [f"{type(self.model).__name__} for {len(self.classes)} classes, in {self.folder}"]
        if self.meter is not None:
            shown = ", ".join(f"{name} {value}" for name, value in list(self.metrics.items())[:4])
            lines.append(f"  {shown} on {len(self.meter):,} validation images")
        lines.append(f"  {self.images:,} images in {self.steps:,} steps and {self.seconds:.1f} seconds")
        lines += [f"  {choice.setting}: {choice.value}, because {choice.reason}" for choice in self.chosen]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
