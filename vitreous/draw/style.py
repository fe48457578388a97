"""The look that all figures share: colors, an axis without a box, panels side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Two colors that everybody can tell apart (Okabe and Ito), and ink; a page has its own shade of each (``inline.py``).
BLUE, ORANGE, INK = "#0072b2", "#d55e00", "#010203"

#: Lines that everybody can tell apart (Okabe and Ito), also by their dashes.
LINES = (
    (BLUE, "-"),
    (ORANGE, "-"),
    ("#009e73", "-"),
    ("#cc79a7", "-"),
    ("#56b4e9", (0, (4, 1.5))),
    ("#e69f00", (0, (4, 1.5))),
    ("#8a8f98", (0, (1, 1))),
)


def plain(axis: Axes) -> None:
    """Draw an axis without a box, with a faint grid, everything in the page's ink."""
    axis.set_facecolor("none")
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.grid(alpha=0.15, color=INK, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=8.5)
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)


def side_by_side(count: int, *, width: float = 3.4, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels in one row, each ``width`` × ``height`` inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), dpi=120, layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])
