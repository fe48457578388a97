"""What an explanation explains: one number per image, computed from the outputs of a model.

    score = class_score(torch.tensor([281, 7]))         each image's own class
    score = region_score(mask, 3)                       class 3 in a region of each image
    score = lambda outputs: outputs["class"][:, 281]    any function of the outputs by name

Explanation methods work through images in batches of their own, some images several times over. A function treats all
of them alike; a score that knows something about each image is an :class:`ImageScore`, whose rows can be taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.models.base import Model, combine
from vitreous.models.engine import Engine
from vitreous.samples import Inputs

Outputs = dict[str, Tensor]
Score = Callable[[Outputs], Float[Tensor, " b"]]


class ImageScore(ABC):
    """A score that holds something for each image of a batch: its class, its region."""

    @abstractmethod
    def __call__(self, outputs: Outputs) -> Float[Tensor, " b"]:
        """The number that is explained, from logits: a probability hardly moves where the model is sure."""

    @abstractmethod
    def probability(self, outputs: Outputs) -> Float[Tensor, " b"]:
        """The same as a probability, which curves of deletion and insertion follow."""

    @abstractmethod
    def take(self, rows: Int[Tensor, " k"]) -> ImageScore:
        """The score of these images."""

    @abstractmethod
    def check(self, model: Model, num_images: int) -> None:
        """Refuse a model or a batch that this score does not fit."""


@dataclass(frozen=True)
class ClassScore(ImageScore):
    """See :func:`class_score`."""

    targets: Int[Tensor, " b"]

    def __call__(self, outputs: Outputs) -> Float[Tensor, " b"]:
        return combine(outputs).gather(1, self.targets[:, None])[:, 0]

    def probability(self, outputs: Outputs) -> Float[Tensor, " b"]:
        return combine(outputs).softmax(dim=-1).gather(1, self.targets[:, None])[:, 0]

    def take(self, rows: Int[Tensor, " k"]) -> ClassScore:
        return ClassScore(self.targets[rows])

    def check(self, model: Model, num_images: int) -> None:
        num_classes = model.config.num_classes
        if not num_classes:
            raise ValueError("the model has no classes, so there is no answer to explain; load it with its head")
        if len(self.targets) != num_images:
            raise ValueError(f"targets must be one class number per image: {num_images}, got {len(self.targets)}")
        if num_images and int(self.targets.max()) >= num_classes:
            raise ValueError(f"targets must lie in 0 … {num_classes - 1}, got {self.targets.tolist()}")


@dataclass(frozen=True)
class LabelScore(ClassScore):
    """The logit of one of several labels, whose probability is a sigmoid of its own."""

    def probability(self, outputs: Outputs) -> Float[Tensor, " b"]:
        return combine(outputs).sigmoid().gather(1, self.targets[:, None])[:, 0]

    def take(self, rows: Int[Tensor, " k"]) -> LabelScore:
        return LabelScore(self.targets[rows])


@dataclass(frozen=True)
class RegionScore(ImageScore):
    """See :func:`region_score`."""

    mask: Bool[Tensor, "b y x"]
    class_index: int

    def __call__(self, outputs: Outputs) -> Float[Tensor, " b"]:
        return self.mean(self.masks(outputs)[:, self.class_index])

    def probability(self, outputs: Outputs) -> Float[Tensor, " b"]:
        return self.mean(self.masks(outputs).softmax(dim=1)[:, self.class_index])

    def mean(self, values: Float[Tensor, "b y x"]) -> Float[Tensor, " b"]:
        return torch.where(self.mask, values, 0.0).sum(dim=(1, 2)) / self.mask.sum(dim=(1, 2))

    def masks(self, outputs: Outputs) -> Float[Tensor, "b k y x"]:
        if "masks" not in outputs:
            raise ValueError(f"a region's score needs the output 'masks', the model gives {', '.join(outputs)}")
        masks = outputs["masks"]
        if masks.shape[2:] != self.mask.shape[1:]:
            raise ValueError(
                f"the region has {self.mask.shape[1]}×{self.mask.shape[2]} pixels, the model's masks have "
                f"{masks.shape[2]}×{masks.shape[3]}; resize the region to them"
            )
        if self.class_index >= masks.shape[1]:
            raise ValueError(f"class_index must lie in 0 … {masks.shape[1] - 1}, got {self.class_index}")
        return masks

    def take(self, rows: Int[Tensor, " k"]) -> RegionScore:
        return RegionScore(self.mask[rows], self.class_index)

    def check(self, model: Model, num_images: int) -> None:
        if len(self.mask) != num_images:
            raise ValueError(f"the region must be one mask per image: {num_images}, got {len(self.mask)}")


def class_score(targets: Int[Tensor, " b"]) -> ClassScore:
    """The logit of each image's own class, mean over the classifier heads."""
    if targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"targets must be one class number per image, shape (images,); "
            f"got {targets.dtype} of shape {tuple(targets.shape)}"
        )
    if len(targets) and int(targets.min()) < 0:
        raise ValueError(f"targets must be class numbers from 0 on, got {targets.tolist()}")
    return ClassScore(targets)


def region_score(mask: Bool[Tensor, "b y x"], class_index: int) -> RegionScore:
    """Mean logit of a class over the pixels of each image's region, in the dense output ``masks`` (b, k, y, x)."""
    if mask.ndim != 3 or mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool of shape (images, y, x), got {mask.dtype} of shape {tuple(mask.shape)}")
    if not mask.flatten(1).any(dim=1).all():
        raise ValueError("mask must hold at least one pixel of every image, got an empty region")
    if class_index < 0:
        raise ValueError(f"class_index must be a class number from 0 on, got {class_index}")
    return RegionScore(mask, class_index)


def outputs_of(model: Engine, images: Float[Tensor, "b c y x"]) -> Outputs:
    """All outputs of a model by name: the one place where explanations call it."""
    return model.outputs(Inputs(images))


def scores(model: Engine, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, " b"]:
    """The score of each image."""
    values = score(outputs_of(model, images))
    if values.shape != (len(images),):
        raise ValueError(f"a score is one number per image, got shape {tuple(values.shape)} for {len(images)} images")
    return values


def probabilities(model: Engine, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, " b"]:
    """The probability that a score speaks of; of a function, which knows no probability, the score itself."""
    return scores(model, images, score.probability if isinstance(score, ImageScore) else score)


def take(score: Score, rows: Int[Tensor, " k"]) -> Score:
    """The score of some of the images."""
    return score.take(rows) if isinstance(score, ImageScore) else score


def check_score(score: Score, model: Model, num_images: int) -> None:
    """Refuse a model or a batch that a score does not fit, before anything is computed."""
    if isinstance(score, ImageScore):
        score.check(model, num_images)
    elif not callable(score):
        raise ValueError(f"score must be a function of the outputs, such as class_score(targets), got {score!r}")
