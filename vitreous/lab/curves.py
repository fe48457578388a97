"""A figure of curves, for numbers that stand beside the cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vitreous.explain.measure_figures import LINES, side_by_side
from vitreous.explain.report_figures import plain
from vitreous.lab.claim import Axes
from vitreous.lab.figures import legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], names: Axes) -> Figure:
    """One line with dots for each name: its places and its values. Later ones are thinner: none hides another."""
    figure, (axis,) = side_by_side(1, width=5.6, height=3.3)
    thickness = [1.4 + 0.8 * others for others in reversed(range(len(lines)))]
    for (name, (places, values)), (colour, style), wide in zip(lines.items(), LINES, thickness, strict=False):
        axis.plot(places, values, "o", color=colour, linestyle=style, linewidth=wide, markersize=3 + wide, label=name)
    axis.set_xlabel(names.x)
    axis.set_ylabel(names.y)
    axis.set_ylim(bottom=0)
    plain(axis)
    legend(axis)
    return figure
