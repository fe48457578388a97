"""Image transforms of a model: evaluation preprocessing, or random crops and flips for a custom training loop."""

from __future__ import annotations

from typing import Protocol

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from vitreous.data.augment import fill_color, normalize
from vitreous.data.image_files import standardize
from vitreous.data.view import View, evaluation_view
from vitreous.spec import Preprocess, Spec

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class HasSpec(Protocol):
    spec: Spec


class ImageTransform:
    """Convert a Pillow image of any mode to a normalized float tensor (c, y, x); see :func:`transforms`."""

    def __init__(self, preprocess: Preprocess, *, train: bool = False) -> None:
        self.preprocess, self.train = preprocess, train
        self.mode = pil_mode(preprocess)

    def __call__(self, image: Image.Image) -> Tensor:
        return self.with_view(standardize(image))[0]

    def with_view(self, image: Image.Image) -> tuple[Tensor, View]:
        """Transform an upright 8-bit image; return the tensor, and the view that maps the image to it."""
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


def pil_mode(preprocess: Preprocess) -> str:
    """Return Pillow's mode for the model's number of channels."""
    if preprocess.num_channels not in MODES:
        raise ValueError(
            f"image files have 1, 3 or 4 channels, but the model takes {preprocess.num_channels}; pass tensors instead"
        )
    return MODES[preprocess.num_channels]


def transforms(model: HasSpec | Preprocess, *, train: bool = False) -> ImageTransform:
    """Return the image transform that a model expects, for use with any PyTorch dataset.

    Args:
        model: A model, or its ``Preprocess`` settings.
        train: Use a random resized crop and a random flip instead of the evaluation crop.

    Returns:
        A callable from a Pillow image to a normalized float tensor (c, y, x).

    >>> dataset = torchvision.datasets.ImageFolder("photos", transform=vt.transforms(model))
    """
    preprocess = model if isinstance(model, Preprocess) else model.spec.preprocess
    return ImageTransform(preprocess, train=train)
