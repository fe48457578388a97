"""The common style of all figures: colors, axes without a box, panels side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Two color-blind safe colors (Okabe and Ito) and the text color; pages replace them (``inline.py``).
BLUE, ORANGE, INK = "#0072b2", "#d55e00", "#010203"

#: Color-blind safe line styles (Okabe and Ito), also distinguished by dashes.
LINES = (
    (BLUE, "-"),
    (ORANGE, "-"),
    ("#009e73", "-"),
    ("#cc79a7", "-"),
    ("#56b4e9", (0, (4, 1.5))),
    ("#e69f00", (0, (4, 1.5))),
    ("#8a8f98", (0, (1, 1))),
)


def style_axis(axis: Axes) -> None:
    """Remove the box of an axis, add a faint grid, and use the text color for everything."""
    axis.set_facecolor("none")
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.grid(alpha=0.15, color=INK, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=8.5)
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)


def side_by_side(count: int, *, width: float = 3.4, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """Create a figure of ``count`` panels in one row, each ``width`` × ``height`` inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), dpi=120, layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])
