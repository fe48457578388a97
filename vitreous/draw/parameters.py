"""Figures of weights: similarity of position embeddings, and the filters of the first layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitreous.draw.overlay import Array, to_float32
from vitreous.draw.style import INK
from vitreous.layers.position import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CELLS = 14
MAX_FILTERS = 64
COMPONENTS = 28


def position_figure(table: Float[Array, "n d"], grid: Grid) -> Figure:
    """Draw the cosine similarity of each cell's position embedding with all others: one small map per cell."""
    from matplotlib.figure import Figure

    similarity = position_similarity(to_float32(table), grid)
    mosaic = tiles([[map_.numpy() for map_ in row] for row in similarity], fill=np.nan)
    side = 4.6 / max(mosaic.shape)
    figure = Figure(figsize=(mosaic.shape[1] * side + 1.0, mosaic.shape[0] * side + 0.2), dpi=144, layout="constrained")
    axis = figure.subplots()
    axis.set_axis_off()
    drawn = axis.imshow(mosaic, cmap="cividis", vmin=float(similarity.min()), vmax=1.0, interpolation="nearest")
    bar = figure.colorbar(drawn, ax=axis, fraction=0.04, pad=0.02, aspect=28)
    bar.set_label("cosine similarity", color=INK, fontsize=8.5)
    bar.ax.tick_params(colors=INK, labelsize=8)
    bar.outline.set_visible(False)
    return figure


def position_similarity(table: Float[Tensor, "n d"], grid: Grid) -> Float[Tensor, "v w y x"]:
    """cos(E[v, w], E[y, x]) of all cells (y, x) with at most 14 × 14 evenly spaced cells (v, w)."""
    if len(table) != grid[0] * grid[1]:
        raise ValueError(f"a grid of {grid[0]}×{grid[1]} has {grid[0] * grid[1]} positions, got {len(table)}")
    unit = F.normalize(table, dim=-1)
    maps = (unit @ unit.T).reshape(*grid, *grid)
    rows, columns = (torch.linspace(0, count - 1, min(count, MAX_CELLS)).round().long() for count in grid)
    return maps[rows][:, columns]


def filter_figure(filters: Float[Array, "d c p q"]) -> Figure:
    """Draw the filters of the first layer in color; of more than 64 filters the first 28 principal components."""
    from matplotlib.figure import Figure

    chosen = to_float32(filters)
    if len(chosen) > MAX_FILTERS:
        chosen = principal_filters(chosen, COMPONENTS)
    columns = min(14, len(chosen))
    images = [colored(one) for one in chosen]
    rows = [images[start : start + columns] for start in range(0, len(images), columns)]
    rows[-1] += [np.ones_like(images[0])] * (columns - len(rows[-1]))
    mosaic = tiles(rows, fill=1.0)
    side = 8.4 / mosaic.shape[1]
    figure = Figure(figsize=(8.4, mosaic.shape[0] * side), dpi=144)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    axis.imshow(mosaic, interpolation="nearest")
    return figure


def principal_filters(filters: Float[Tensor, "d c p q"], count: int) -> Float[Tensor, "k c p q"]:
    """The first ``count`` principal components of the filters, in falling order of variance."""
    rows = filters.flatten(1)
    directions = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False).Vh[:count]
    return directions.reshape(-1, *filters.shape[1:])


def colored(one: Float[Tensor, "c p q"]) -> Float[np.ndarray, "p q 3"]:
    """Scale a filter to 0 … 1 with zero at middle gray; filters without 3 channels are averaged to gray."""
    scaled = 0.5 + 0.5 * one / one.abs().max().clamp(min=1e-12)
    if len(scaled) != 3:
        scaled = scaled.mean(dim=0, keepdim=True).expand(3, -1, -1)
    return rearrange(scaled, "c p q -> p q c").numpy()


def tiles(rows: list[list[np.ndarray]], *, fill: float) -> np.ndarray:
    """Arrange images of one size in rows and columns with gaps."""
    height, width = rows[0][0].shape[:2]
    gap = max(1, round(max(height, width) / 10))
    canvas = np.full(
        (len(rows) * (height + gap) - gap, len(rows[0]) * (width + gap) - gap, *rows[0][0].shape[2:]), fill
    )
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            y, x = i * (height + gap), j * (width + gap)
            canvas[y : y + height, x : x + width] = image
    return canvas
