"""What an explanation of one image asks: which class, with what probability, and the score that says so.

A classifier is asked about an image's class, a model of several labels about one of them, a segmenter about the region
that it gives to a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.explain.score import ClassScore, ImageScore, LabelScore, Outputs, outputs_of, region_score
from vitreous.models.base import Model, combine


@dataclass(frozen=True)
class Question(ABC):
    """One image's question; ``probabilities`` are those of all classes, ``target`` the class that is asked about."""

    probabilities: Float[Tensor, " k"]
    target: int

    @classmethod
    @abstractmethod
    def ask(cls, outputs: Outputs, number: int | None) -> Question:
        """About class ``number``, or about the likeliest."""

    @abstractmethod
    def score(self, times: int, device: torch.device) -> ImageScore:
        """The score of so many copies of the image."""

    @abstractmethod
    def follow(self, outputs: Outputs) -> Float[Tensor, "b k"]:
        """The probability of every class, for the logit lens."""


@dataclass(frozen=True)
class WhichClass(Question):
    @classmethod
    def ask(cls, outputs: Outputs, number: int | None) -> WhichClass:
        probabilities = combine(outputs)[0].float().softmax(-1).cpu()
        return cls(probabilities, int(probabilities.argmax()) if number is None else number)

    def score(self, times: int, device: torch.device) -> ImageScore:
        return ClassScore(torch.full((times,), self.target, device=device))

    def follow(self, outputs: Outputs) -> Float[Tensor, "b k"]:
        return combine(outputs).float().softmax(-1)


@dataclass(frozen=True)
class WhichLabel(Question):
    @classmethod
    def ask(cls, outputs: Outputs, number: int | None) -> WhichLabel:
        probabilities = combine(outputs)[0].float().sigmoid().cpu()
        return cls(probabilities, int(probabilities.argmax()) if number is None else number)

    def score(self, times: int, device: torch.device) -> ImageScore:
        return LabelScore(torch.full((times,), self.target, device=device))

    def follow(self, outputs: Outputs) -> Float[Tensor, "b k"]:
        return combine(outputs).float().sigmoid()


@dataclass(frozen=True)
class WhichRegion(Question):
    """Probabilities are shares of the pixels; asked is about the region of a class, by itself the largest one that is
    not the first class, which is the background by custom. A class without any pixel is asked about everywhere."""

    region: Bool[Tensor, "y x"]

    @classmethod
    def ask(cls, outputs: Outputs, number: int | None) -> WhichRegion:
        masks = outputs["masks"][0]
        found = masks.argmax(0)
        shares = torch.bincount(found.flatten(), minlength=len(masks)).cpu() / found.numel()
        if number is None:
            number = 1 + int(shares[1:].argmax()) if len(shares) > 1 and bool((shares[1:] > 0).any()) else 0
        region = found == number
        return cls(shares, number, region if bool(region.any()) else torch.ones_like(region))

    def score(self, times: int, device: torch.device) -> ImageScore:
        return region_score(self.region.expand(times, -1, -1), self.target)

    def follow(self, outputs: Outputs) -> Float[Tensor, "b k"]:
        return outputs["masks"].float().softmax(1)[:, :, self.region].mean(-1)


QUESTIONS: dict[str, type[Question]] = {"classify": WhichClass, "multilabel": WhichLabel, "segment": WhichRegion}


@torch.no_grad()
def ask(model: Model, image: Float[Tensor, "1 c y x"], number: int | None) -> Question:
    """The question that suits a model's task."""
    if model.spec.task not in QUESTIONS:
        raise ValueError(
            f"explanations know the tasks {', '.join(QUESTIONS)}, the model's is {model.spec.task!r}; "
            "use the methods of explain/attribution.py with a score of your own"
        )
    return QUESTIONS[model.spec.task].ask(outputs_of(model, image), number)
