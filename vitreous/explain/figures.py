"""Pictures of what a model looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitreous.explain.trace import Attention


def looked_at(attention: Attention) -> Float[Tensor, "b y x"]:
    """How much each cell of the grid is looked at: its weight averaged over heads and queries, times the cells.

    1 is an even share. It says where information is fetched from, not what it is used for.
    """
    if attention.key_grid is None:
        raise ValueError("these keys do not lie on a grid, so there is no picture of them")
    received = attention.weights.mean(dim=(1, 2))[:, attention.num_prefix :]
    return (received * received.shape[1]).reshape(-1, *attention.key_grid)


def overlay(axis: Any, image: UInt8[np.ndarray, "3 y x"], heat: Float[Tensor, "v w"]) -> None:
    """A heat map over a greyed picture, on a matplotlib axis."""
    grey = image.mean(axis=0)
    size = (image.shape[1], image.shape[2])
    smooth = F.interpolate(heat[None, None], size=size, mode="bilinear", align_corners=False)[0, 0].numpy()
    axis.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.imshow(smooth, cmap="magma", alpha=0.6, vmin=0, vmax=max(2.0, float(smooth.max())))


def attention_sheet(
    images: UInt8[np.ndarray, "b 3 y x"], heat: Float[Tensor, "b v w"], titles: list[str], path: Path
) -> None:
    """Each picture beside where its last layer looks."""
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


def curve(points: dict[str, NDArray[np.floating]], path: Path, *, title: str) -> None:
    """Loss and accuracy against images seen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=10)
    for axis, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        axis.plot(points["images"], points[name], color="#3b6ea5", linewidth=1.2)
        axis.set_xlabel("images seen")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    figure.savefig(path)
