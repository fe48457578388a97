"""The contract that every task keeps, so that the training loop needs to know only this.

task.prepare(device, preprocess)              once before the first step, e.g. to fetch a teacher
loss, logits = task.loss(heads, batch)        a scalar to descend, and the answers beside it
measures = task.measure(logits, targets, …)   of a whole set; the first chooses the best checkpoint

A task is a frozen dataclass of settings and has no parameters. It sees the model as a function from images to the
logits of every head: :class:`Heads`, wrapped or not by whatever spreads the work over processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.models.base import Backbone
from vitreous.spec import Batch, Preprocess

Forward = Callable[[Tensor], dict[str, Tensor]]


class Heads(nn.Module):
    """A backbone whose forward gives every head by name: wrappers such as DDP see nothing but ``forward``."""

    def __init__(self, model: Backbone) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "b c y x"]) -> dict[str, Float[Tensor, "b k"]]:
        return self.model.answers(images)


def combine(heads: dict[str, Float[Tensor, "b k"]]) -> Float[Tensor, "b k"]:
    """The model's answer from those of its heads: their mean, as in ``Backbone.forward``."""
    first, *others = heads.values()
    return sum(others, first) / (1 + len(others)) if others else first


@dataclass(frozen=True)
class Task(ABC):
    """Settings of what is learned. A subclass adds its fields and implements :meth:`loss` and :meth:`measure`."""

    @abstractmethod
    def loss(self, forward: Forward, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, "b k"]]:
        """The mean loss of a batch, and the model's logits, detached."""

    @abstractmethod
    def measure(
        self, logits: Float[Tensor, "n k"], targets: Float[Tensor, "n k"], classes: tuple[str, ...]
    ) -> dict[str, float]:
        """Measures of a whole set. The first chooses the best checkpoint; of it, more is better."""

    def prepare(self, device: str, preprocess: Preprocess) -> None:  # noqa: B027
        """Once before training, for tasks that fetch something; ``preprocess`` says how images were normalised."""

    def facts(self) -> dict[str, str]:
        """What a run's record should tell of this task beyond its settings."""
        return {}


def check_targets(logits: Tensor, targets: Tensor) -> None:
    if logits.shape != targets.shape:
        raise ValueError(
            f"the model answers with shape {tuple(logits.shape)} (pictures, classes), the targets have "
            f"{tuple(targets.shape)}; build it with num_classes={targets.shape[-1]}"
        )


def check_share(name: str, value: float, *, below_one: bool = False) -> None:
    """A setting that is a share of something: from 0 to 1, for some without the 1 itself."""
    if not 0 <= value <= 1 or (below_one and value == 1):
        raise ValueError(f"{name} must lie between 0 and 1{' and below 1' if below_one else ''}, got {value}")
