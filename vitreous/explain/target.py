"""The class that an explanation of one image is about, with its probability and its score.

For a classifier the target is one of the exclusive classes, for a multi-label model one label, for a segmenter the
region that it assigns to a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.explain.score import ClassScore, ImageScore, LabelScore, Outputs, outputs_of, region_score
from vitreous.models.base import Model, mean_logits


@dataclass(frozen=True)
class ExplanationTarget(ABC):
    """The explained class (``class_index``) of one image, and the ``probabilities`` of all classes."""

    probabilities: Float[Tensor, " k"]
    class_index: int

    @classmethod
    @abstractmethod
    def from_outputs(cls, outputs: Outputs, class_index: int | None) -> ExplanationTarget:
        """Choose the given class, or the most probable one."""

    @abstractmethod
    def score(self, num_copies: int, device: torch.device) -> ImageScore:
        """The score of the target for a batch of ``num_copies`` copies of the image."""

    @abstractmethod
    def all_probabilities(self, outputs: Outputs) -> Float[Tensor, "b k"]:
        """The probability of every class, which the logit lens computes after each block."""


@dataclass(frozen=True)
class ClassTarget(ExplanationTarget):
    """One of several exclusive classes: softmax."""

    @classmethod
    def from_outputs(cls, outputs: Outputs, class_index: int | None) -> ClassTarget:
        probabilities = mean_logits(outputs)[0].float().softmax(-1).cpu()
        return cls(probabilities, int(probabilities.argmax()) if class_index is None else class_index)

    def score(self, num_copies: int, device: torch.device) -> ImageScore:
        return ClassScore(torch.full((num_copies,), self.class_index, device=device))

    def all_probabilities(self, outputs: Outputs) -> Float[Tensor, "b k"]:
        return mean_logits(outputs).float().softmax(-1)


@dataclass(frozen=True)
class LabelTarget(ExplanationTarget):
    """One of several independent labels: sigmoid."""

    @classmethod
    def from_outputs(cls, outputs: Outputs, class_index: int | None) -> LabelTarget:
        probabilities = mean_logits(outputs)[0].float().sigmoid().cpu()
        return cls(probabilities, int(probabilities.argmax()) if class_index is None else class_index)

    def score(self, num_copies: int, device: torch.device) -> ImageScore:
        return LabelScore(torch.full((num_copies,), self.class_index, device=device))

    def all_probabilities(self, outputs: Outputs) -> Float[Tensor, "b k"]:
        return mean_logits(outputs).float().sigmoid()


@dataclass(frozen=True)
class RegionTarget(ExplanationTarget):
    """The pixels predicted as a class; ``probabilities`` are the fraction of pixels of each class.

    The default class is the largest one other than class 0, which is the background by convention. For a class that is
    predicted nowhere the region is the whole image.
    """

    region: Bool[Tensor, "y x"]

    @classmethod
    def from_outputs(cls, outputs: Outputs, class_index: int | None) -> RegionTarget:
        masks = outputs["masks"][0]
        predicted = masks.argmax(0)
        fractions = torch.bincount(predicted.flatten(), minlength=len(masks)).cpu() / predicted.numel()
        if class_index is None:
            has_foreground = len(fractions) > 1 and bool((fractions[1:] > 0).any())
            class_index = 1 + int(fractions[1:].argmax()) if has_foreground else 0
        region = predicted == class_index
        return cls(fractions, class_index, region if bool(region.any()) else torch.ones_like(region))

    def score(self, num_copies: int, device: torch.device) -> ImageScore:
        return region_score(self.region.expand(num_copies, -1, -1), self.class_index)

    def all_probabilities(self, outputs: Outputs) -> Float[Tensor, "b k"]:
        return outputs["masks"].float().softmax(1)[:, :, self.region].mean(-1)


TARGETS: dict[str, type[ExplanationTarget]] = {
    "classify": ClassTarget,
    "multilabel": LabelTarget,
    "segment": RegionTarget,
}


@torch.no_grad()
def choose_target(model: Model, image: Float[Tensor, "1 c y x"], class_index: int | None) -> ExplanationTarget:
    """Run the model and choose the given class, or its most probable one, according to the model's task."""
    task = model.spec.task
    if task not in TARGETS:
        raise ValueError(
            f"explanations support the tasks {', '.join(TARGETS)}, got {task!r}; "
            "use the methods of vitreous.explain.attribution with a custom score"
        )
    return TARGETS[task].from_outputs(outputs_of(model, image), class_index)
