"""An image in whatever form people hold it: a path, a Pillow image, an array or a tensor, all to the same pixels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.image_files import BadImage, open_image, standard

AnyImage = str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor
CHANNELS = (1, 3, 4)  # gray, RGB, RGB with transparency
ROUNDING = 1 / 512  # how far floats may miss 0…1: less than half of a byte's step
FORMS = "a path, a Pillow image, an array (height, width, channels) or a tensor (channels, height, width)"


def as_image(image: AnyImage) -> Image.Image:
    """The image upright and in 8 bits, RGB or gray: equal pixels in whichever form it comes.

    An array is (y, x) or (y, x, c), a tensor (y, x) or (c, y, x), of bytes or of floats in 0…1, with 1, 3 or 4
    channels; the other order of axes is taken where only that one makes sense. What cannot be decoded is a
    :class:`BadImage`, anything else that is no image a ``ValueError`` that says what to pass.
    """
    if isinstance(image, str | os.PathLike):
        try:
            return open_image(image)
        except BadImage as error:
            raise BadImage(f"{os.fspath(image)}: {error}", error.reason) from None
    if isinstance(image, Tensor):
        image = from_pixels(*as_array(image), channels_first=True)
    elif isinstance(image, np.ndarray):
        image = from_pixels(image, f"an array of {image.dtype}, {image.shape}", channels_first=False)
    if not isinstance(image, Image.Image):
        raise ValueError(f"an image is {FORMS}, got {type(image).__name__}")
    return decoded(image)


def as_list(images: Any) -> list[Any] | None:
    """Several images one by one: a list, a tuple, or an array or tensor with four axes; None for anything else."""
    if isinstance(images, list | tuple):
        return list(images)
    return list(images) if isinstance(images, np.ndarray | Tensor) and images.ndim == 4 else None


def as_array(tensor: Tensor) -> tuple[NDArray[Any], str]:
    """A tensor's values, wherever it lies, and what it is called in messages."""
    name = f"a tensor of {str(tensor.dtype).removeprefix('torch.')}, {tuple(tensor.shape)}"
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(), name


def from_pixels(pixels: NDArray[Any], name: str, *, channels_first: bool) -> Image.Image:
    """Gray values (y, x), or pixels with their channels at either end, as a Pillow image."""
    if pixels.ndim == 3:
        pixels = channels_last(pixels, name, channels_first=channels_first)
    if pixels.ndim != 2 + (pixels.ndim == 3) or not pixels.size:
        several = "; several images are a list" if pixels.ndim == 4 else ""
        raise ValueError(f"an image has the axes (y, x), (y, x, c) or (c, y, x) and is not empty, got {name}{several}")
    values = np.ascontiguousarray(as_bytes(pixels, name))
    return Image.fromarray(values[..., 0] if values.shape[2:] == (1,) else values)


def channels_last(pixels: NDArray[Any], name: str, *, channels_first: bool) -> NDArray[Any]:
    likely, other = (0, -1) if channels_first else (-1, 0)
    axis = next((axis for axis in (likely, other) if pixels.shape[axis] in CHANNELS), None)
    if axis is None:
        raise ValueError(f"an image has 1, 3 or 4 channels, got {name}; pass the channels that show it in gray or RGB")
    return np.moveaxis(pixels, axis, -1)


def as_bytes(pixels: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating):
        raise ValueError(f"pixels are uint8 (0 to 255) or floats from 0 to 1, got {name}; convert them to uint8")
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):  # neither holds for NaN
        remedy = "divide by 255, or pass uint8" if low >= 0 and 1 < high <= 255 else "pass the image as it is"
        remedy += ": the model's own normalization follows" if low < 0 else ""
        raise ValueError(f"floats must lie between 0 and 1, got {name} from {low:.3g} to {high:.3g}; {remedy}")
    return np.round(np.clip(pixels.astype(np.float64), 0, 1) * 255).astype(np.uint8)


def decoded(image: Image.Image) -> Image.Image:
    if not image.width or not image.height:
        raise ValueError(f"an image has at least one pixel, got a Pillow image of {image.width}×{image.height}")
    try:
        return standard(image)
    except Exception as error:  # a file that is opened but not yet read: decoders raise whatever comes to hand
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadImage(f"it cannot be decoded ({reason})") from None
