"""Images to tensors, as a model's spec says, or with random crops and flips for a training loop of one's own."""

from __future__ import annotations

from typing import Protocol

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from vitreous.data.augment import fill_color, normalize
from vitreous.data.image_files import standard
from vitreous.data.view import View, evaluation_view
from vitreous.spec import Preprocess, Spec

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class HasSpec(Protocol):
    spec: Spec


class ImageTransform:
    """A Pillow image in any mode → a normalized float tensor (c, y, x)."""

    def __init__(self, preprocess: Preprocess, *, train: bool = False) -> None:
        self.preprocess, self.train = preprocess, train
        self.mode = mode_of(preprocess)

    def __call__(self, image: Image.Image) -> Tensor:
        return self.seen(standard(image))[0]

    def seen(self, image: Image.Image) -> tuple[Tensor, View]:
        """The tensor, and the view that it shows of an image which is upright and in 8 bits already."""
        image = image.convert(self.mode)
        view = self.view((image.height, image.width))
        pixels = view.image(image, fill_color(self.preprocess))
        return normalize(pixels[None], self.preprocess)[0], view

    def view(self, source: tuple[int, int]) -> View:
        if not self.train:
            return evaluation_view(source, self.preprocess)
        size = self.preprocess.image_size
        box = v2.RandomResizedCrop(size).make_params([torch.empty(1, *source)])
        top, left, height, width = (float(box[name]) for name in ("top", "left", "height", "width"))
        flipped = bool(torch.rand(1) < 0.5)
        interpolation = self.preprocess.interpolation
        return View(source, (top, left, height, width), size, size, flipped=flipped, interpolation=interpolation)

    def __repr__(self) -> str:
        return f"ImageTransform({self.preprocess}, train={self.train})"


def mode_of(preprocess: Preprocess) -> str:
    """Pillow's name for images of so many channels."""
    if preprocess.num_channels not in MODES:
        raise ValueError(
            f"images have 1, 3 or 4 channels, the model takes {preprocess.num_channels}; prepare tensors yourself"
        )
    return MODES[preprocess.num_channels]


def transforms(model: HasSpec | Preprocess, *, train: bool = False) -> ImageTransform:
    """The preprocessing a model expects: for evaluation, or with random crops and flips for training."""
    preprocess = model if isinstance(model, Preprocess) else model.spec.preprocess
    return ImageTransform(preprocess, train=train)
