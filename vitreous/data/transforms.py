"""Pictures to tensors, as the model's spec says."""

from __future__ import annotations

from typing import Protocol

from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

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
        return self.steps(picture.convert(self.mode))

    def __repr__(self) -> str:
        return f"PictureTransform({self.mode}, {self.steps})"


def transforms(model: HasSpec | Preprocess, *, train: bool = False) -> PictureTransform:
    """The preprocessing a model expects: for evaluation, or with random crops and flips for training."""
    preprocess = model if isinstance(model, Preprocess) else model.spec.preprocess
    return PictureTransform(preprocess, train=train)


def shrink(preprocess: Preprocess) -> list[v2.Transform]:
    """Resize with the aspect ratio kept, so that the centre crop covers ``crop_ratio`` of the short side."""
    height, width = preprocess.image_size
    mode = InterpolationMode(preprocess.interpolation)
    if height == width:
        resize = v2.Resize(int(height / preprocess.crop_ratio), interpolation=mode)
    else:
        larger = [int(side / preprocess.crop_ratio) for side in (height, width)]
        resize = v2.Resize(larger, interpolation=mode)
    return [resize, v2.CenterCrop([height, width])]


def augment(preprocess: Preprocess) -> list[v2.Transform]:
    mode = InterpolationMode(preprocess.interpolation)
    return [v2.RandomResizedCrop(preprocess.image_size, interpolation=mode), v2.RandomHorizontalFlip()]


def normalise(preprocess: Preprocess) -> list[v2.Transform]:
    import torch

    return [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(list(preprocess.mean), list(preprocess.std)),
    ]
