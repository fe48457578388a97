"""Convert images from paths, Pillow images, arrays or tensors to identical 8-bit pixels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.image_files import BadImage, open_image, standardize

AnyImage = str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor
CHANNELS = (1, 3, 4)  # grayscale, RGB, RGBA
ROUNDING = 1 / 512  # tolerance of floats outside 0…1: half of a uint8 step
FORMS = "a path, a Pillow image, an array (height, width, channels) or a tensor (channels, height, width)"


def as_image(image: AnyImage) -> Image.Image:
    """Convert an image in any form to upright 8-bit RGB or grayscale.

    Args:
        image: A path, a Pillow image, an array (y, x) or (y, x, c), or a tensor (y, x) or (c, y, x). Arrays and tensors
            are uint8 or floats in 0…1, with 1, 3 or 4 channels; channels at the other end are accepted where the shape
            is unambiguous.

    Raises:
        BadImage: The image cannot be read or decoded.
        ValueError: The argument is not an image.
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
    return standardize_decoded(image)


def as_list(images: Any) -> list[Any] | None:
    """Split a list, a tuple, or a four-dimensional array or tensor into images; return None for anything else."""
    if isinstance(images, list | tuple):
        return list(images)
    return list(images) if isinstance(images, np.ndarray | Tensor) and images.ndim == 4 else None


def as_array(tensor: Tensor) -> tuple[NDArray[Any], str]:
    """Return a tensor's values as an array, and its description for error messages."""
    name = f"a tensor of {str(tensor.dtype).removeprefix('torch.')}, {tuple(tensor.shape)}"
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(), name


def from_pixels(pixels: NDArray[Any], name: str, *, channels_first: bool) -> Image.Image:
    """Convert grayscale values (y, x), or pixels with channels first or last, to a Pillow image."""
    if pixels.ndim == 3:
        pixels = channels_last(pixels, name, channels_first=channels_first)
    if pixels.ndim != 2 + (pixels.ndim == 3) or not pixels.size:
        several = "; pass several images as a list" if pixels.ndim == 4 else ""
        raise ValueError(f"an image must be a non-empty (y, x), (y, x, c) or (c, y, x), got {name}{several}")
    values = np.ascontiguousarray(as_bytes(pixels, name))
    return Image.fromarray(values[..., 0] if values.shape[2:] == (1,) else values)


def channels_last(pixels: NDArray[Any], name: str, *, channels_first: bool) -> NDArray[Any]:
    likely, other = (0, -1) if channels_first else (-1, 0)
    axis = next((axis for axis in (likely, other) if pixels.shape[axis] in CHANNELS), None)
    if axis is None:
        raise ValueError(f"an image must have 1, 3 or 4 channels, got {name}; select the channels to use")
    return np.moveaxis(pixels, axis, -1)


def as_bytes(pixels: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating):
        raise ValueError(f"pixels must be uint8 (0 to 255) or floats from 0 to 1, got {name}; convert them to uint8")
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):  # neither holds for NaN
        remedy = "divide by 255, or pass uint8" if low >= 0 and 1 < high <= 255 else "pass the original image"
        remedy += ", since the model's normalization is applied to it" if low < 0 else ""
        raise ValueError(f"floats must lie between 0 and 1, got {name} from {low:.3g} to {high:.3g}; {remedy}")
    return np.round(np.clip(pixels.astype(np.float64), 0, 1) * 255).astype(np.uint8)


def standardize_decoded(image: Image.Image) -> Image.Image:
    if not image.width or not image.height:
        raise ValueError(f"an image needs at least one pixel, got a Pillow image of {image.width}×{image.height}")
    try:
        return standardize(image)
    except Exception as error:  # a lazily opened file is decoded here, and decoders may raise any exception
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadImage(f"it cannot be decoded ({reason})") from None
