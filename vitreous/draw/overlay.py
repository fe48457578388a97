"""Images of what a model looks at: a heat map over the image that it belongs to."""

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

#: From dark violet over orange to bright yellow: evenly lighter, so that it survives print and color blindness.
COLORS = "inferno"

Array = Tensor | NDArray[Any]


def overlay(axis: Axes, image: Array, heat: Array, *, norm: Normalize | None = None) -> None:
    """Heat (v, w) over the grayed image (c, y, x), on a matplotlib axis."""
    axis.imshow(blended(image, heat, norm=norm))


def blended(image: Array, heat: Array, *, norm: Normalize | None = None) -> UInt8[np.ndarray, "y x 3"]:
    """Heat (v, w) over the grayed image (c, y, x): the stronger the heat, the less of the image shows.

    ``norm`` turns heat into 0 … 1; by itself 0 is dark, and bright the largest value or twice an even share.
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
    """Heat (v, w) spread over pixels: cells blend into their neighbors, and what is finer is averaged."""
    cells = as_numbers(heat)[None, None]
    if cells.shape[-2] > size[0] or cells.shape[-1] > size[1]:
        return F.adaptive_avg_pool2d(cells, (size[0], size[1]))[0, 0].numpy()
    return F.interpolate(cells, size=(size[0], size[1]), mode="bilinear", align_corners=False)[0, 0].numpy()


def as_numbers(values: Array) -> Float[Tensor, ...]:
    """Whatever precision and device it has, as a float32 tensor that can be drawn."""
    return torch.as_tensor(values).detach().to("cpu", torch.float32)


def displayable(image: Array) -> UInt8[np.ndarray, "y x 3"]:
    """An image (c, y, x) in bytes, or in numbers from 0 to 1, as matplotlib shows it."""
    pixels = torch.as_tensor(image).detach().cpu()
    if pixels.dtype != torch.uint8:
        pixels = (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8)
    return (pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)).permute(1, 2, 0).numpy()


def attention_sheet(
    images: UInt8[np.ndarray, "b 3 y x"], heat: Float[Tensor, "b v w"], titles: list[str], path: Path
) -> None:
    """Each image beside where its last layer looks."""
    from matplotlib.figure import Figure

    columns = min(4, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(3.2 * columns, 1.9 * rows), dpi=120, layout="constrained")
    figure.suptitle(
        "Left: the scene and the model's answer. Right: where the last layer looks (bright: more).", fontsize=9
    )
    axes = figure.subplots(rows, 2 * columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for index, (image, title) in enumerate(zip(images, titles, strict=True)):
        row, column = divmod(index, columns)
        axes[row, 2 * column].imshow(image.transpose(1, 2, 0), interpolation="nearest")
        axes[row, 2 * column].set_title(title, fontsize=8, loc="left")
        overlay(axes[row, 2 * column + 1], image, heat[index])
    figure.savefig(path)
