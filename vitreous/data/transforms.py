"""Pictures to tensors, as the model's spec says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from vitreous.data.pictures import standard
from vitreous.spec import Preprocess, Spec

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class HasSpec(Protocol):
    spec: Spec


class PictureTransform:
    """A Pillow image in any mode → a normalised float tensor (c, y, x)."""

    def __init__(self, preprocess: Preprocess, *, train: bool = False) -> None:
        if preprocess.num_channels not in MODES:
            raise ValueError(
                f"pictures have 1, 3 or 4 channels, the model takes {preprocess.num_channels}; prepare tensors yourself"
            )
        self.mode = MODES[preprocess.num_channels]
        self.steps = v2.Compose([*(augment(preprocess) if train else shrink(preprocess)), *normalise(preprocess)])

    def __call__(self, picture: Image.Image) -> Tensor:
        return self.steps(standard(picture).convert(self.mode))

    def __repr__(self) -> str:
        return f"PictureTransform({self.mode}, {self.steps})"


def transforms(model: HasSpec | Preprocess, *, train: bool = False) -> PictureTransform:
    """The preprocessing a model expects: for evaluation, or with random crops and flips for training."""
    preprocess = model if isinstance(model, Preprocess) else model.spec.preprocess
    return PictureTransform(preprocess, train=train)


def shrink(preprocess: Preprocess) -> list[Callable[[Any], Any]]:
    return [Cover(preprocess), v2.CenterCrop(list(preprocess.image_size))]


class Cover:
    """Resize with the aspect ratio kept, so that the crop covers ``crop_ratio`` of the tighter side."""

    def __init__(self, preprocess: Preprocess) -> None:
        self.least = [int(side / preprocess.crop_ratio) for side in preprocess.image_size]
        self.interpolation = InterpolationMode(preprocess.interpolation)

    def __call__(self, picture: Image.Image) -> Image.Image:
        width, height = picture.size
        if height * self.least[1] > width * self.least[0]:  # tall for the crop: the width decides
            size = [int(self.least[1] * height / width), self.least[1]]
        else:
            size = [self.least[0], int(self.least[0] * width / height)]
        return v2.functional.resize(picture, size, interpolation=self.interpolation)


def augment(preprocess: Preprocess) -> list[v2.Transform]:
    mode = InterpolationMode(preprocess.interpolation)
    return [v2.RandomResizedCrop(preprocess.image_size, interpolation=mode), v2.RandomHorizontalFlip()]


def normalise(preprocess: Preprocess) -> list[v2.Transform]:
    return [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(list(preprocess.mean), list(preprocess.std)),
    ]
