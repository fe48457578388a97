"""Scores: the number per image that an explanation attributes, computed from the outputs of a model.

    score = class_score(torch.tensor([281, 7]))         one class per image
    score = region_score(mask, 3)                       class 3 in a region of each image
    score = lambda outputs: outputs["class"][:, 281]    any function of the dict of outputs

Attribution methods split and repeat the images in batches. A plain function treats all images alike; a score with data
for each image is an :class:`ImageScore`, which can be indexed by image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.models.base import Model, mean_logits
from vitreous.models.engine import Engine
from vitreous.samples import Inputs

Outputs = dict[str, Tensor]
Score = Callable[[Outputs], Float[Tensor, " b"]]


class ImageScore(ABC):
    """A score with data for each image of a batch, such as its class or its region."""

    @abstractmethod
    def __call__(self, outputs: Outputs) -> Float[Tensor, " b"]:
        """The explained number, computed from logits: a probability saturates where the model is confident."""

    @abstractmethod
    def probability(self, outputs: Outputs) -> Float[Tensor, " b"]:
        """The corresponding probability, which deletion and insertion curves plot."""

    @abstractmethod
    def take(self, rows: Int[Tensor, " k"]) -> ImageScore:
        """The score of the selected images."""

    @abstractmethod
    def check(self, model: Model, num_images: int) -> None:
        """Raise a ValueError if the score does not fit the model or the batch."""


@dataclass(frozen=True)
class ClassScore(ImageScore):
    """See :func:`class_score`."""

    targets: Int[Tensor, " b"]

    def __call__(self, outputs: Outputs) -> Float[Tensor, " b"]:
        return mean_logits(outputs).gather(1, self.targets[:, None])[:, 0]

    def probability(self, outputs: Outputs) -> Float[Tensor, " b"]:
        return mean_logits(outputs).softmax(dim=-1).gather(1, self.targets[:, None])[:, 0]

    def take(self, rows: Int[Tensor, " k"]) -> ClassScore:
        return ClassScore(self.targets[rows])

    def check(self, model: Model, num_images: int) -> None:
        num_classes = model.config.num_classes
        if not num_classes:
            raise ValueError("the model has no classes, so there is no prediction to explain; load it with its head")
        if len(self.targets) != num_images:
            raise ValueError(f"targets must hold one class index per image: {num_images}, got {len(self.targets)}")
        if num_images and int(self.targets.max()) >= num_classes:
            raise ValueError(f"targets must lie in 0 … {num_classes - 1}, got {self.targets.tolist()}")


@dataclass(frozen=True)
class LabelScore(ClassScore):
    """The logit of one of several independent labels; its probability is a sigmoid."""

    def probability(self, outputs: Outputs) -> Float[Tensor, " b"]:
        return mean_logits(outputs).sigmoid().gather(1, self.targets[:, None])[:, 0]

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
            raise ValueError(f"region_score needs the output 'masks', the model returns {', '.join(outputs)}")
        masks = outputs["masks"]
        if masks.shape[2:] != self.mask.shape[1:]:
            raise ValueError(
                f"the region has {self.mask.shape[1]}×{self.mask.shape[2]} pixels, the model's masks have "
                f"{masks.shape[2]}×{masks.shape[3]}; resize the region to that size"
            )
        if self.class_index >= masks.shape[1]:
            raise ValueError(f"class_index must lie in 0 … {masks.shape[1] - 1}, got {self.class_index}")
        return masks

    def take(self, rows: Int[Tensor, " k"]) -> RegionScore:
        return RegionScore(self.mask[rows], self.class_index)

    def check(self, model: Model, num_images: int) -> None:
        if len(self.mask) != num_images:
            raise ValueError(f"the region must have one mask per image: {num_images}, got {len(self.mask)}")


def class_score(targets: Int[Tensor, " b"]) -> ClassScore:
    """Explain the logit of one class per image, averaged over the classifier heads.

    Args:
        targets: The class index of each image, an integer tensor of shape (images,).
    """
    if targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"targets must hold one class index per image, shape (images,); "
            f"got {targets.dtype} of shape {tuple(targets.shape)}"
        )
    if len(targets) and int(targets.min()) < 0:
        raise ValueError(f"targets must be class indices from 0, got {targets.tolist()}")
    return ClassScore(targets)


def region_score(mask: Bool[Tensor, "b y x"], class_index: int) -> RegionScore:
    """Explain the mean logit of a class over each image's region, in the dense output ``masks`` (b, k, y, x)."""
    if mask.ndim != 3 or mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool of shape (images, y, x), got {mask.dtype} of shape {tuple(mask.shape)}")
    if not mask.flatten(1).any(dim=1).all():
        raise ValueError("mask must contain at least one pixel of every image, got an empty region")
    if class_index < 0:
        raise ValueError(f"class_index must be at least 0, got {class_index}")
    return RegionScore(mask, class_index)


def outputs_of(model: Engine, images: Float[Tensor, "b c y x"]) -> Outputs:
    """Run a model and return all of its outputs by name."""
    return model.outputs(Inputs(images))


def scores(model: Engine, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, " b"]:
    """Run a model and compute the score of each image."""
    values = score(outputs_of(model, images))
    if values.shape != (len(images),):
        raise ValueError(
            f"a score must be one number per image, got shape {tuple(values.shape)} for {len(images)} images"
        )
    return values


def probabilities(model: Engine, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, " b"]:
    """Run a model and compute the probability of each image's target; for a plain function, its score."""
    return scores(model, images, score.probability if isinstance(score, ImageScore) else score)


def take(score: Score, rows: Int[Tensor, " k"]) -> Score:
    """Restrict a score to the selected images; a plain function applies to any images."""
    return score.take(rows) if isinstance(score, ImageScore) else score


def check_score(score: Score, model: Model, num_images: int) -> None:
    """Raise a ValueError if a score does not fit the model or the batch, before anything is computed."""
    if isinstance(score, ImageScore):
        score.check(model, num_images)
    elif not callable(score):
        raise ValueError(f"score must be a function of the outputs, such as class_score(targets), got {score!r}")
