"""The interface between tasks and training, evaluation and prediction.

objective   = task.start(spec, device)              once before the first step, e.g. to load a teacher
losses      = objective.loss(outputs, batch)        named losses; the total is "loss"
meter       = objective.meter(classes)              accumulates batches, merges over processes, returns metrics
predictions = task.decode(outputs, spec, views)     model outputs → one typed prediction per image

A :class:`Task` holds immutable options; state needed in training (a teacher, a matcher) belongs to its
:class:`Objective`. Outputs are those of ``model.outputs``. ``vitreous.tasks.TASKS`` lists all tasks.
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
from vitreous.tasks.predictions import InverseView, Prediction

Outputs = dict[str, Tensor]


class Objective(ABC):
    """The training objective of a task for one model: its loss and its metrics."""

    def inputs(self, batch: Batch) -> Inputs:
        """Extract the model's inputs from a batch."""
        return batch.inputs

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """Return the mean loss of a batch as "loss", and optionally its terms under other names for the log."""

    def monitor(self, outputs: Outputs, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """Return cheap metrics of a training batch for the log, each a mean over the images."""
        return {}

    @abstractmethod
    def meter(self, classes: tuple[str, ...]) -> Meter:
        """Create an empty meter for a dataset with these classes."""

    def facts(self) -> dict[str, str]:
        """Return additional entries for the run's ``result.json``, such as the teacher's hash."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Task(Named, ABC):
    """Options of a task, chosen by name, as an object, as JSON or on the command line.

    Class attributes of a subclass: ``name``; ``targets``, the type of target it trains on; ``output_task``, the name of
    the task that decodes the trained model's outputs, which differs from ``name`` if only training differs; and
    ``needs_full_image``, whether images are letterboxed instead of cropped.
    """

    key: ClassVar[str] = "task"
    targets: ClassVar[type[Targets]]
    output_task: ClassVar[str]
    needs_full_image: ClassVar[bool] = False

    @abstractmethod
    def start(self, spec: Spec, device: str) -> Objective:
        """Create the objective for a model with this spec."""

    @classmethod
    @abstractmethod
    def decode(
        cls, outputs: Outputs, spec: Spec, views: Sequence[InverseView] = (), *, top: int = 5
    ) -> Sequence[Prediction]:
        """Convert model outputs into one prediction per image.

        Args:
            outputs: The result of ``model.outputs``.
            spec: The model's spec, with its class names.
            views: One per image, to map predictions back to the source image's pixels.
            top: Maximum number of classes to list.
        """

    @classmethod
    def select(cls, outputs: Outputs, columns: list[int]) -> Outputs:
        """Select and reorder classes of the outputs."""
        return {name: value[:, columns] for name, value in outputs.items()}

    @classmethod
    def table(cls) -> Mapping[str, Task]:
        from vitreous.tasks import TASKS  # local import: circular

        return TASKS


def find_decoder(spec: Spec) -> Task:
    """Return the task that decodes a model's outputs."""
    known = Task.table()
    if spec.task not in known:
        raise ValueError(
            f"the model was trained for the task {spec.task!r}, which this version of Vitreous does not support "
            f"(supported: {', '.join(sorted(known))}); upgrade Vitreous, or use model.outputs directly"
        )
    return known[spec.task]


class OutputsModule(nn.Module):
    """Expose ``model.outputs`` as ``forward``, the only method that DDP and FSDP wrap."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Outputs:
        return self.model.outputs(inputs)
