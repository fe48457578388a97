"""Draw many images of one size in rows and columns on one axis; separate axes would take seconds to lay out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from vitreous.draw.overlay import COLORS
from vitreous.draw.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Tile = UInt8[np.ndarray, "y x c"]
GAP, TITLE_HEIGHT = 0.05, 0.2  # inches
TEXT_STYLE: dict[str, Any] = {"color": INK, "fontsize": 8}


@dataclass(frozen=True)
class Sheet:
    """A figure of tiles; ``corners`` are (x, y) of the upper left pixel of each tile on the axis."""

    figure: Figure
    axis: Axes
    corners: list[tuple[int, int]]


def draw_sheet(
    tiles: Sequence[Tile | None],
    titles: Sequence[str],
    *,
    columns: int,
    side: float,
    rows: Sequence[str] = (),
    cells: bool = False,
) -> Sheet:
    """Draw tiles row by row, with titles above and row names to the left; None leaves a gap.

    ``side`` is the longer side of a tile in inches; ``cells`` disables interpolation.
    """
    from matplotlib.figure import Figure

    height, width = next(tile.shape[:2] for tile in tiles if tile is not None)
    scale = max(height, width) / side
    corners, bottom = corners_of(len(tiles), titles, (height, width), columns=columns, scale=scale)
    canvas = np.zeros((bottom, max(x for x, _ in corners) + width, 4), dtype=np.uint8)
    for tile, (x, y) in zip(tiles, corners, strict=True):
        if tile is not None:
            canvas[y : y + height, x : x + width, :3] = tile
            canvas[y : y + height, x : x + width, 3] = 255
    size = (canvas.shape[1] / scale + (0.2 if rows else 0.0) + 0.8, canvas.shape[0] / scale + 0.05)
    figure = Figure(figsize=size, dpi=144, layout="constrained")
    axis = figure.subplots()
    axis.set_axis_off()
    axis.imshow(canvas, interpolation="nearest" if cells else None)
    for title, (x, y) in zip(titles, corners, strict=False):
        axis.text(x + width / 2, y - 0.03 * scale, title, ha="center", va="bottom", **TEXT_STYLE)
    for name, (_, y) in zip(rows, corners[::columns], strict=False):
        axis.text(-0.05 * scale, y + height / 2, name, ha="right", va="center", rotation=90, **TEXT_STYLE)
    return Sheet(figure, axis, corners)


def corners_of(
    count: int, titles: Sequence[str], size: tuple[int, int], *, columns: int, scale: float
) -> tuple[list[tuple[int, int]], int]:
    """Compute the corner of each tile and the height of the sheet; rows without titles take no space for them."""
    gap, head = max(1, round(GAP * scale)), round(TITLE_HEIGHT * scale)
    corners, y = [], 0
    for start in range(0, count, columns):
        y += head if any(titles[start : start + columns]) else 0
        corners += [(column * (size[1] + gap), y) for column in range(min(columns, count - start))]
        y += size[0] + gap
    return corners, y - gap


def color_bar(sheet: Sheet, norm: Normalize, label: str, ticks: dict[float, str]) -> None:
    from matplotlib.cm import ScalarMappable

    bar = sheet.figure.colorbar(ScalarMappable(norm, COLORS), ax=sheet.axis, aspect=28, pad=0.02, fraction=0.04)
    bar.set_ticks(list(ticks), labels=list(ticks.values()), minor=False)
    bar.ax.minorticks_off()
    bar.ax.tick_params(colors=INK, labelsize=8)
    bar.set_label(label, color=INK, fontsize=8.5)
    bar.outline.set_visible(False)


def colored(values: NDArray[np.floating], norm: Normalize) -> Tile:
    from matplotlib import colormaps

    return colormaps[COLORS](np.ma.filled(norm(values), 0.0), bytes=True)[..., :3]
