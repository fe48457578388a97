"""The contract that every task keeps, so that training, evaluation and prediction need to know only this.

objective = task.start(spec, device)              once before the first step, e.g. to load a teacher
parts     = objective.loss(outputs, batch)        named parts of the loss, the total first, under "loss"
meter     = objective.meter(classes)              adds batch after batch, merges over processes, gives metrics
found     = task.decode(outputs, spec, views)     outputs of the model → one typed prediction per image

A task is frozen settings; whatever it needs at work (a teacher, a matcher) belongs to its :class:`Objective`. Outputs
are those of ``model.outputs``. ``tasks/__init__.py`` is the table of all tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.models.base import Model
from vitreous.options import Named
from vitreous.samples import Batch, Inputs, Targets
from vitreous.spec import Spec
from vitreous.tasks.meter import Meter
from vitreous.tasks.predictions import Prediction, Undoes

Outputs = dict[str, Tensor]


class Objective(ABC):
    """A task at work on one model: what to minimize and how to measure."""

    def inputs(self, batch: Batch) -> Inputs:
        """What the model is given of a batch."""
        return batch.inputs

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """The mean loss of a batch under "loss", and its parts beside it."""

    def monitor(self, outputs: Outputs, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """Quick metrics of a training batch for the log, as means over its images."""
        return {}

    @abstractmethod
    def meter(self, classes: tuple[str, ...]) -> Meter: ...

    def facts(self) -> dict[str, str]:
        """What a run's record should say beyond the settings."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Task(Named, ABC):
    """Settings of what is learned, chosen by name, by object, by JSON or on the command line."""

    key: ClassVar[str] = "task"
    targets: ClassVar[type[Targets]]
    meaning: ClassVar[str]  # the task that decodes the outputs: another one where only training differs
    sees_all: ClassVar[bool] = False  # whether images are letterboxed rather than cropped, since every pixel counts

    @abstractmethod
    def start(self, spec: Spec, device: str) -> Objective: ...

    @classmethod
    @abstractmethod
    def decode(
        cls, outputs: Outputs, spec: Spec, views: Sequence[Undoes] = (), *, top: int = 5
    ) -> Sequence[Prediction]:
        """One prediction per image; ``views`` map them back onto the source images."""

    @classmethod
    def select(cls, outputs: Outputs, columns: list[int]) -> Outputs:
        """Only some classes of the outputs, in this order."""
        return {name: value[:, columns] for name, value in outputs.items()}

    @classmethod
    def table(cls) -> Mapping[str, Task]:
        from vitreous.tasks import TASKS  # here, since the table imports all tasks and they this file

        return TASKS


def decoder_of(spec: Spec) -> Task:
    """The task that says what a model's outputs mean."""
    known = Task.table()
    if spec.task not in known:
        raise ValueError(
            f"the model's outputs are for the task {spec.task!r}, which this version of Vitreous does not know "
            f"(known: {', '.join(sorted(known))}); upgrade Vitreous, or read model.outputs yourself"
        )
    return known[spec.task]


class OutputsOf(nn.Module):
    """A model whose forward gives its named outputs: wrappers such as DDP see nothing but ``forward``."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Outputs:
        return self.model.outputs(inputs)
