"""Overlay heat maps on images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

#: Perceptually uniform: readable in grayscale print and with color blindness.
COLORS = "inferno"

Array = Tensor | NDArray[Any]


def overlay(axis: Axes, image: Array, heat: Array, *, norm: Normalize | None = None) -> None:
    """Draw heat (v, w) over the grayscale image (c, y, x) on a matplotlib axis."""
    axis.imshow(blend_heat(image, heat, norm=norm))


def blend_heat(image: Array, heat: Array, *, norm: Normalize | None = None) -> UInt8[np.ndarray, "y x 3"]:
    """Blend heat (v, w) over the grayscale image (c, y, x): the stronger the heat, the more opaque.

    ``norm`` maps heat to 0 … 1. Default: linear from 0 to the maximum, but at least to 2 (twice uniform attention).
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    pixels = displayable(image)
    smooth = resized(heat, pixels.shape[:2])
    norm = norm or Normalize(0.0, max(2.0, float(smooth.max())), clip=True)
    strength = np.ma.filled(norm(smooth), 0.0)[..., None]
    gray = pixels.mean(axis=2, keepdims=True)
    opacity = 0.25 + 0.5 * strength
    colors = colormaps[COLORS](strength[..., 0])[..., :3] * 255
    return ((1 - opacity) * gray + opacity * colors).round().astype(np.uint8)


def resized(heat: Array, size: tuple[int, ...]) -> Float[np.ndarray, "y x"]:
    """Resize heat (v, w) to pixels: bilinear interpolation, or averaging where it is finer than the image."""
    cells = to_float32(heat)[None, None]
    if cells.shape[-2] > size[0] or cells.shape[-1] > size[1]:
        return F.adaptive_avg_pool2d(cells, (size[0], size[1]))[0, 0].numpy()
    return F.interpolate(cells, size=(size[0], size[1]), mode="bilinear", align_corners=False)[0, 0].numpy()


def to_float32(values: Array) -> Float[Tensor, ...]:
    """Convert an array of any dtype and device to a float32 tensor on the CPU."""
    return torch.as_tensor(values).detach().to("cpu", torch.float32)


def displayable(image: Array) -> UInt8[np.ndarray, "y x 3"]:
    """Convert an image (c, y, x), uint8 or float from 0 to 1, to uint8 RGB (y, x, 3)."""
    pixels = torch.as_tensor(image).detach().cpu()
    if pixels.dtype != torch.uint8:
        pixels = (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8)
    return (pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)).permute(1, 2, 0).numpy()


def attention_sheet(
    images: UInt8[np.ndarray, "b 3 y x"], heat: Float[Tensor, "b v w"], titles: list[str], path: Path
) -> None:
    """Save images side by side with the attention of the last layer."""
    from matplotlib.figure import Figure

    columns = min(4, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(3.2 * columns, 1.9 * rows), dpi=120, layout="constrained")
    figure.suptitle("Left: image and prediction. Right: attention in the last layer (bright: more).", fontsize=9)
    axes = figure.subplots(rows, 2 * columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for index, (image, title) in enumerate(zip(images, titles, strict=True)):
        row, column = divmod(index, columns)
        axes[row, 2 * column].imshow(image.transpose(1, 2, 0), interpolation="nearest")
        axes[row, 2 * column].set_title(title, fontsize=8, loc="left")
        overlay(axes[row, 2 * column + 1], image, heat[index])
    figure.savefig(path)
