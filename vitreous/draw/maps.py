"""Maps of an image in rows and columns: methods side by side, heads × layers, one patch's view, depth, points.

Maps of attention are drawn in shares: 1 is what every cell would get if all got the same. The scale is logarithmic,
since one cell may well get a hundred shares, and it is the same for all maps of a figure.
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

from vitreous.draw.overlay import Array, as_numbers, blended, displayable
from vitreous.draw.sheet import Sheet, color_bar, colored, draw_sheet
from vitreous.explain.maps import Place, cell_at, denormalized, mean_over_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from vitreous.explain.trace import Trace

#: Colors for groups that can be told apart by everybody (Okabe and Ito), the darkest left out.
GROUPS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
DOT: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.4, "alpha": 0.9}
MOST_COLUMNS = 12
MOST_ROWS = 16
EXTREMES = ((min, torch.min), (max, torch.max))


def methods_figure(image: Shaped[Array, "c y x"], heats: Mapping[str, Array]) -> Figure:
    """The image, and over it what each method (name → heat (v, w)) calls important, each on a scale of its own.

    Values below 0, of cells that count against the class, are drawn as 0.
    """
    from matplotlib.colors import Normalize

    image = at_most(image, 320)
    tiles = [displayable(image)]
    for heat in heats.values():
        values = as_numbers(heat).numpy()
        low, high = max(0.0, float(values.min())), float(np.quantile(values, 0.995))
        tiles.append(blended(image, values, norm=Normalize(low, high if high > low else low + 1.0, clip=True)))
    sheet = draw_sheet(tiles, ["the image", *heats], columns=4, side=2.1)
    color_bar(sheet, Normalize(0.0, 1.0), "importance", {0.0: "least", 1.0: "most"})
    return sheet.figure


def heads_figure(maps: Mapping[str, Float[Array, "h y x"]]) -> Figure:
    """Where every head (row) of every layer (column: name → maps) looks, in shares; cells as they are, not blended."""
    chosen = spread(maps, MOST_COLUMNS)
    rows = min(MOST_ROWS, max(len(heads) for heads in chosen.values()))
    norm = shares_norm(list(chosen.values()))
    size = tile_size(list(chosen.values()))
    tiles = [
        colored(enlarged(heads[row], size), norm) if row < len(heads) else None
        for row in range(rows)
        for heads in chosen.values()
    ]
    names = [f"head {row}" for row in range(rows)]
    sheet = draw_sheet(tiles, list(chosen), columns=len(chosen), side=0.68, rows=names, cells=True)
    shares_bar(sheet, norm)
    return sheet.figure


def depth_figure(
    image: Shaped[Array, "c y x"], maps: Mapping[str, Float[Array, "v w"]], *, place: Place | None = None
) -> Figure:
    """Maps of the layers (name → map in shares) over the image, as a strip from the first to the last.

    ``place`` marks the cell whose view the maps are.
    """
    chosen = spread(maps, MOST_COLUMNS)
    image = at_most(image, 240)
    norm = shares_norm(list(chosen.values()))
    tiles = [blended(image, heat, norm=norm) for heat in chosen.values()]
    sheet = draw_sheet(tiles, list(chosen), columns=min(6, len(chosen)), side=1.3)
    for heat, corner in zip(chosen.values(), sheet.corners, strict=True):
        if place is not None:
            mark_cell(sheet.axis, place, corner, grid=heat.shape, size=image.shape[1:])
    shares_bar(sheet, norm)
    return sheet.figure


def points_figure(
    image: Shaped[Array, "c y x"],
    points: Mapping[str, Float[Array, "g m 2"]],
    *,
    weights: Mapping[str, Float[Array, "g m"]] | None = None,
    place: Place | None = None,
) -> Figure:
    """The points of the image that deformable attention reads, by layer; a color per group of heads.

    Points are (x, y) from 0 to 1; those outside the image, where nothing is read, are left out. ``weights`` are
    their areas; a white cross marks the ``place`` that looks.
    """
    chosen = spread(points, MOST_COLUMNS)
    image = at_most(image, 320)
    pale = np.repeat(displayable(image).mean(axis=2, keepdims=True) * 0.6 + 102, 3, axis=2).astype(np.uint8)
    sheet = draw_sheet([pale] * len(chosen), list(chosen), columns=min(4, len(chosen)), side=2.1)
    for (name, groups), (left, top) in zip(chosen.items(), sheet.corners, strict=True):
        for index, spots in enumerate(as_numbers(groups)):
            share = torch.full((len(spots),), 0.2) if weights is None else as_numbers(weights[name][index])
            inside = ((spots >= 0) & (spots <= 1)).all(dim=-1)
            area = 3 + 60 * share / (1.0 if weights is None else share.max().clamp(min=1e-9))
            x, y = spots[:, 0] * pale.shape[1] + left - 0.5, spots[:, 1] * pale.shape[0] + top - 0.5
            sheet.axis.scatter(x[inside], y[inside], s=area[inside], color=GROUPS[index % len(GROUPS)], **DOT)
        if place is not None:
            x, y = place[1] * pale.shape[1] + left - 0.5, place[0] * pale.shape[0] + top - 0.5
            sheet.axis.plot(x, y, marker="P", markersize=9, color="white", markeredgecolor="black")
    return sheet.figure


def trace_figure(trace: Trace) -> Figure:
    """Where the blocks of a trace look, as a strip: a row for each of the first images, mean over the heads."""
    maps = {block: seen for block in trace.looking() if (seen := mean_over_heads(trace, block)) is not None}
    if not maps or trace.images is None:
        raise ValueError("nothing in this trace can be drawn on a grid; what it holds is in trace[name].kept")
    chosen = spread(maps, MOST_COLUMNS)
    norm = shares_norm(list(chosen.values()))
    size = tile_size(list(chosen.values()))
    tiles = []
    for row, image in enumerate(denormalized(trace.images[:4], trace.model.spec.preprocess)):
        tiles += [fitted(image, size), *(colored(enlarged(images[row], size), norm) for images in chosen.values())]
    sheet = draw_sheet(tiles, ["image", *chosen], columns=1 + len(chosen), side=0.85, cells=True)
    shares_bar(sheet, norm)
    return sheet.figure


def shares_norm(maps: Sequence[Array]) -> Normalize:
    """From the least share, or a quarter, to the largest: maps that are nearly even show what they have."""
    from matplotlib.colors import LogNorm

    least, most = (pick(float(pick_of(as_numbers(map_))) for map_ in maps) for pick, pick_of in EXTREMES)
    return LogNorm(min(0.8, max(0.25, least)), max(1.25, most), clip=True)


def shares_bar(sheet: Sheet, norm: Normalize) -> None:
    """An even share and steps to both sides: fourfold where the range is wide, a quarter more where it is narrow."""
    low, high = norm.vmin or 0.25, norm.vmax or 4.0
    base = 4.0 if high / low > 20 else 2.0 if high / low > 5 else 1.25
    steps = [base**power for power in range(-8, 12) if low * 0.99 <= base**power <= high * 1.01]
    ticks = {step: "≤ ¼" if step == 0.25 else f"{step:.2f}".rstrip("0").rstrip(".") for step in steps}
    color_bar(sheet, norm, "even shares", ticks)


def tile_size(maps: Sequence[Array]) -> tuple[int, int]:
    """One size for maps of several grids: that of the finest, in whole multiples up to some sixty pixels."""
    height, width = (max(map_.shape[axis] for map_ in maps) for axis in (-2, -1))
    times = max(1, 60 // max(height, width))
    return height * times, width * times


def enlarged(cells: Array, size: tuple[int, int]) -> Float[np.ndarray, "y x"]:
    """Every cell as a rectangle of its own color."""
    return F.interpolate(as_numbers(cells)[None, None], size=size, mode="nearest-exact")[0, 0].numpy()


def fitted(image: Array, size: tuple[int, int]) -> UInt8[np.ndarray, "y x 3"]:
    return np.asarray(Image.fromarray(displayable(image)).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def at_most(image: Array, side: int) -> UInt8[Tensor, "3 y x"]:
    """A large image made smaller; a figure has no room for more pixels."""
    pixels = displayable(image)
    height, width = (max(1, round(n * min(1.0, side / max(pixels.shape[:2])))) for n in pixels.shape[:2])
    return torch.from_numpy(fitted(image, (height, width)).copy()).permute(2, 0, 1)


def mark_cell(axis: Axes, place: Place, corner: tuple[int, int], *, grid: Sequence[int], size: Sequence[int]) -> None:
    """A frame around the cell of a grid that a place lies in, on the tile that begins at ``corner``."""
    from matplotlib.patches import Rectangle

    row, column = cell_at(place, grid)
    height, width = size[0] / grid[0], size[1] / grid[1]
    start = (corner[0] + column * width - 0.5, corner[1] + row * height - 0.5)
    for color, line in (("black", 2.6), ("white", 1.3)):
        axis.add_patch(Rectangle(start, width, height, fill=False, edgecolor=color, linewidth=line))


def spread(layers: Mapping[str, Any], most: int) -> dict[str, Any]:
    """At most so many of the layers, evenly spread from the first to the last."""
    names = list(layers)
    if len(names) <= most:
        return dict(layers)
    return {names[index]: layers[names[index]] for index in np.linspace(0, len(names) - 1, most).round().astype(int)}
