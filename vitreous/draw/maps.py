"""Figures of maps: attribution methods, attention by head and layer, of one patch, by depth, and sampling points.

Attention maps are relative to uniform attention (1). Their color scale is logarithmic, since a cell may well receive a
hundred times uniform, and shared by all maps of a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped, UInt8
from PIL import Image
from torch import Tensor

from vitreous.draw.overlay import Array, blend_heat, displayable, to_float32
from vitreous.draw.sheet import Sheet, color_bar, colored, draw_sheet
from vitreous.explain.maps import RelativePoint, cell_at, denormalized, mean_class_attention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from vitreous.explain.trace import Trace

#: Color-blind safe colors (Okabe and Ito) for groups of heads, without the darkest.
GROUPS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
DOT: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.4, "alpha": 0.9}
MAX_COLUMNS = 12
MAX_ROWS = 16
EXTREMES = ((min, torch.min), (max, torch.max))


def methods_figure(image: Shaped[Array, "c y x"], heats: Mapping[str, Array]) -> Figure:
    """Draw the image, and the attribution map (v, w) of each method over it on a separate scale.

    Negative values (evidence against the class) are drawn as 0.
    """
    from matplotlib.colors import Normalize

    image = downscaled(image, 320)
    tiles = [displayable(image)]
    for heat in heats.values():
        values = to_float32(heat).numpy()
        low, high = max(0.0, float(values.min())), float(np.quantile(values, 0.995))
        tiles.append(blend_heat(image, values, norm=Normalize(low, high if high > low else low + 1.0, clip=True)))
    sheet = draw_sheet(tiles, ["the image", *heats], columns=4, side=2.1)
    color_bar(sheet, Normalize(0.0, 1.0), "importance", {0.0: "least", 1.0: "most"})
    return sheet.figure


def heads_figure(maps: Mapping[str, Float[Array, "h y x"]]) -> Figure:
    """Draw the attention map of every head (row) and layer (column), relative to uniform, without interpolation."""
    chosen = evenly_spaced(maps, MAX_COLUMNS)
    rows = min(MAX_ROWS, max(len(heads) for heads in chosen.values()))
    norm = attention_norm(list(chosen.values()))
    size = tile_size(list(chosen.values()))
    tiles = [
        colored(enlarged(heads[row], size), norm) if row < len(heads) else None
        for row in range(rows)
        for heads in chosen.values()
    ]
    names = [f"head {row}" for row in range(rows)]
    sheet = draw_sheet(tiles, list(chosen), columns=len(chosen), side=0.68, rows=names, cells=True)
    attention_color_bar(sheet, norm)
    return sheet.figure


def depth_figure(
    image: Shaped[Array, "c y x"], maps: Mapping[str, Float[Array, "v w"]], *, place: RelativePoint | None = None
) -> Figure:
    """Draw one map per layer (relative to uniform) over the image, from the first layer to the last.

    ``place`` marks the cell whose attention the maps show.
    """
    chosen = evenly_spaced(maps, MAX_COLUMNS)
    image = downscaled(image, 240)
    norm = attention_norm(list(chosen.values()))
    tiles = [blend_heat(image, heat, norm=norm) for heat in chosen.values()]
    sheet = draw_sheet(tiles, list(chosen), columns=min(6, len(chosen)), side=1.3)
    for heat, corner in zip(chosen.values(), sheet.corners, strict=True):
        if place is not None:
            mark_cell(sheet.axis, place, corner, grid=heat.shape, size=image.shape[1:])
    attention_color_bar(sheet, norm)
    return sheet.figure


def points_figure(
    image: Shaped[Array, "c y x"],
    points: Mapping[str, Float[Array, "g m 2"]],
    *,
    weights: Mapping[str, Float[Array, "g m"]] | None = None,
    place: RelativePoint | None = None,
) -> Figure:
    """Draw the sampling points of deformable attention over the image, by layer; one color per group of heads.

    Points are (x, y) from 0 to 1; those outside the image, where zeros are sampled, are left out. ``weights`` set
    their areas; a white cross marks the ``place`` of the query.
    """
    chosen = evenly_spaced(points, MAX_COLUMNS)
    image = downscaled(image, 320)
    pale = np.repeat(displayable(image).mean(axis=2, keepdims=True) * 0.6 + 102, 3, axis=2).astype(np.uint8)
    sheet = draw_sheet([pale] * len(chosen), list(chosen), columns=min(4, len(chosen)), side=2.1)
    for (name, groups), (left, top) in zip(chosen.items(), sheet.corners, strict=True):
        for index, group in enumerate(to_float32(groups)):
            weight = torch.full((len(group),), 0.2) if weights is None else to_float32(weights[name][index])
            inside = ((group >= 0) & (group <= 1)).all(dim=-1)
            area = 3 + 60 * weight / (1.0 if weights is None else weight.max().clamp(min=1e-9))
            x, y = group[:, 0] * pale.shape[1] + left - 0.5, group[:, 1] * pale.shape[0] + top - 0.5
            sheet.axis.scatter(x[inside], y[inside], s=area[inside], color=GROUPS[index % len(GROUPS)], **DOT)
        if place is not None:
            x, y = place[1] * pale.shape[1] + left - 0.5, place[0] * pale.shape[0] + top - 0.5
            sheet.axis.plot(x, y, marker="P", markersize=9, color="white", markeredgecolor="black")
    return sheet.figure


def trace_figure(trace: Trace) -> Figure:
    """Draw the class attention of each block, mean over heads; one row for each of the first four images."""
    by_block = {block: mean_class_attention(trace, block) for block in trace.self_attentions()}
    maps = {block: heat for block, heat in by_block.items() if heat is not None}
    if not maps or trace.images is None:
        raise ValueError("nothing in this trace can be drawn on a grid; its tensors are in trace[name].tensors")
    chosen = evenly_spaced(maps, MAX_COLUMNS)
    norm = attention_norm(list(chosen.values()))
    size = tile_size(list(chosen.values()))
    tiles = []
    for row, image in enumerate(denormalized(trace.images[:4], trace.model.spec.preprocess)):
        tiles += [resize_to(image, size), *(colored(enlarged(images[row], size), norm) for images in chosen.values())]
    titles = ["image", *chosen]
    columns, side = (len(titles), 0.85) if len(trace.images) > 1 else (min(7, len(titles)), 1.25)
    sheet = draw_sheet(tiles, titles, columns=columns, side=side, cells=True)
    attention_color_bar(sheet, norm)
    return sheet.figure


def attention_norm(maps: Sequence[Array]) -> Normalize:
    """Logarithmic color scale from the minimum (at least ¼) to the maximum, also for nearly uniform maps."""
    from matplotlib.colors import LogNorm

    least, most = (pick(float(pick_of(to_float32(map_))) for map_ in maps) for pick, pick_of in EXTREMES)
    return LogNorm(min(0.8, max(0.25, least)), max(1.25, most), clip=True)


def attention_color_bar(sheet: Sheet, norm: Normalize) -> None:
    """Add a color bar with ticks at powers of 4, 2 or 1.25 around 1, depending on the range."""
    low, high = norm.vmin or 0.25, norm.vmax or 4.0
    base = 4.0 if high / low > 20 else 2.0 if high / low > 5 else 1.25
    steps = [base**power for power in range(-8, 12) if low * 0.99 <= base**power <= high * 1.01]
    ticks = {step: "≤ ¼" if step == 0.25 else f"{step:.2f}".rstrip("0").rstrip(".") for step in steps}
    color_bar(sheet, norm, "attention relative to uniform", ticks)


def tile_size(maps: Sequence[Array]) -> tuple[int, int]:
    """One tile size for maps of several grids: an integer multiple of the finest, up to about 60 pixels."""
    height, width = (max(map_.shape[axis] for map_ in maps) for axis in (-2, -1))
    times = max(1, 60 // max(height, width))
    return height * times, width * times


def enlarged(cells: Array, size: tuple[int, int]) -> Float[np.ndarray, "y x"]:
    """Enlarge a map without interpolation."""
    return F.interpolate(to_float32(cells)[None, None], size=size, mode="nearest-exact")[0, 0].numpy()


def resize_to(image: Array, size: tuple[int, int]) -> UInt8[np.ndarray, "y x 3"]:
    return np.asarray(Image.fromarray(displayable(image)).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def downscaled(image: Array, side: int) -> UInt8[Tensor, "3 y x"]:
    """Downscale an image to at most ``side`` pixels on its longer side."""
    pixels = displayable(image)
    height, width = (max(1, round(n * min(1.0, side / max(pixels.shape[:2])))) for n in pixels.shape[:2])
    return torch.from_numpy(resize_to(image, (height, width)).copy()).permute(2, 0, 1)


def mark_cell(
    axis: Axes, place: RelativePoint, corner: tuple[int, int], *, grid: Sequence[int], size: Sequence[int]
) -> None:
    """Draw a frame around the grid cell that contains ``place``, on the tile that starts at ``corner``."""
    from matplotlib.patches import Rectangle

    row, column = cell_at(place, grid)
    height, width = size[0] / grid[0], size[1] / grid[1]
    start = (corner[0] + column * width - 0.5, corner[1] + row * height - 0.5)
    for color, line in (("black", 2.6), ("white", 1.3)):
        axis.add_patch(Rectangle(start, width, height, fill=False, edgecolor=color, linewidth=line))


def evenly_spaced(layers: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Select at most ``limit`` layers at even distances, including first and last."""
    names = list(layers)
    if len(names) <= limit:
        return dict(layers)
    return {names[index]: layers[names[index]] for index in np.linspace(0, len(names) - 1, limit).round().astype(int)}
