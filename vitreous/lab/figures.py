"""Default figures of claims: measurements with error bars, and the predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from math import ceil, log10
from typing import TYPE_CHECKING, Any

from vitreous.draw.style import BLUE, INK, LINES, ORANGE, side_by_side, style_axis
from vitreous.lab.claim import Axes, Case, Claim
from vitreous.lab.prediction import AtLeast, AtMost, Near, Prediction

if TYPE_CHECKING:
    from matplotlib import axes
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

#: The text's prediction is orange and dashed, the correct one blue, the measurement dark.
TEXT_STYLE: dict[str, Any] = {"color": ORANGE, "linestyle": (0, (4, 2)), "linewidth": 1.4}
RIGHT_STYLE: dict[str, Any] = {"color": BLUE, "linestyle": "-", "linewidth": 1.4}

MAX_TICKS = 8
MAX_LINEAR_RATIO = 300  # largest / smallest value; beyond it the scale is symlog


def default_figure(outcome: ClaimOutcome, claim: Claim) -> Figure:
    """Plot cases over the x axis if they have x values, otherwise as rows."""
    with_x = [case for case in outcome.cases if case.at is not None]
    if claim.axes and with_x:
        return plot_over_axis(with_x, claim.axes)
    return plot_rows(outcome.cases)


def plot_over_axis(cases: Sequence[Case], names: Axes) -> Figure:
    """Plot measurements and predictions over x, one color per group."""
    figure, (axis,) = side_by_side(1, width=6.8, height=3.3)
    groups = {name: list(members) for name, members in groupby(cases, key=lambda case: case.group)}
    single = len(groups) == 1
    for (name, members), (color, _) in zip(groups.items(), LINES * (1 + len(groups)), strict=False):
        for which, style in (("document", TEXT_STYLE), ("right", RIGHT_STYLE)):
            if not is_shared(groups.values(), which):
                plot_predictions(axis, members, which, style if single else {**style, "color": color})
        plot_measurements(axis, members, INK if single else color, name or "measured")
    for which, style in (("document", TEXT_STYLE), ("right", RIGHT_STYLE)):
        if is_shared(groups.values(), which):
            plot_predictions(axis, cases, which, {**style, "color": INK})
    axis.set_xlabel(names.x)
    axis.set_ylabel(names.y)
    set_scales(axis, [x_position(case) for case in cases], names.log)
    style_axis(axis)
    add_legend(axis, cases)
    return figure


def x_position(case: Case) -> float:
    """Return the case's x value, which must be set."""
    assert case.at is not None
    return case.at


def set_scales(axis: axes.Axes, positions: Sequence[float], log: str) -> None:
    """Set linear or logarithmic scales; a logarithmic x axis with few values is labeled with these values."""
    axis.set_yscale("log" if "y" in log else "linear")
    axis.set_xscale("log" if "x" in log else "linear")
    ticks = sorted(set(positions))
    if "x" in log and len(ticks) <= MAX_TICKS:
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xticks([], minor=True)


def predicted_points(cases: Sequence[Case], which: str) -> dict[float, float]:
    """Map x values to the values of the ``Near`` predictions."""
    return {x_position(case): getattr(case, which).value for case in cases if isinstance(getattr(case, which), Near)}


def is_shared(groups: Collection[Sequence[Case]], which: str) -> bool:
    """Whether several groups have identical predictions, which are then drawn once."""
    lines = [predicted_points(members, which) for members in groups]
    return len(lines) > 1 and bool(lines[0]) and all(line == lines[0] for line in lines)


def plot_predictions(axis: axes.Axes, cases: Sequence[Case], which: str, style: dict[str, Any]) -> None:
    """Draw the predictions of a group as a line."""
    if line := predicted_points(cases, which):
        axis.plot(list(line), list(line.values()), **style)


def plot_measurements(axis: axes.Axes, cases: Sequence[Case], color: str, name: str) -> None:
    """Draw measurements as dots with error bars."""
    centers = [case.measured.value for case in cases]
    below = [case.measured.value - case.measured.low for case in cases]
    above = [case.measured.high - case.measured.value for case in cases]
    x = [x_position(case) for case in cases]
    axis.errorbar(x, centers, yerr=(below, above), fmt="o", markersize=4.5, capsize=2.5, color=color, elinewidth=1.2,
                  label=name, zorder=3)  # fmt: skip


def add_legend(axis: axes.Axes, cases: Sequence[Case]) -> None:
    """Add a legend with the groups and the two kinds of prediction."""
    from matplotlib.lines import Line2D

    handles, labels = axis.get_legend_handles_labels()
    single = len(handles) == 1
    for which, name, style in (("document", "the text", TEXT_STYLE), ("right", "correct", RIGHT_STYLE)):
        if any(isinstance(getattr(case, which), Near) for case in cases):
            handles.append(Line2D([], [], **(style if single else {**style, "color": INK})))
            labels.append(name)
    place_legend(axis, handles, labels)


def plot_curves(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], names: Axes) -> Figure:
    """Plot named lines of (x, y) values; later lines are thinner, so that none is hidden."""
    figure, (axis,) = side_by_side(1, width=5.6, height=3.3)
    widths = [1.4 + 0.8 * rank for rank in reversed(range(len(lines)))]
    for (name, (x, y)), (color, style), width in zip(lines.items(), LINES, widths, strict=False):
        axis.plot(x, y, "o", color=color, linestyle=style, linewidth=width, markersize=3 + width, label=name)
    axis.set_xlabel(names.x)
    axis.set_ylabel(names.y)
    axis.set_ylim(bottom=0)
    style_axis(axis)
    place_legend(axis)
    return figure


def plot_rows(cases: Sequence[Case]) -> Figure:
    """Plot one row per case, all on one x scale."""
    figure, (axis,) = side_by_side(1, width=7.6, height=0.8 + 0.42 * len(cases))
    rows = range(len(cases))
    for row, case in zip(rows, cases, strict=True):
        mark_prediction(axis, case.document, row - 0.16, ORANGE, "the text")
        mark_prediction(axis, case.right, row + 0.16, BLUE, "correct")
        estimate = case.measured
        error = ([estimate.value - estimate.low], [estimate.high - estimate.value])
        axis.errorbar([estimate.value], [row], xerr=error, fmt="o", color=INK, markersize=4.5, capsize=2.5, zorder=3,
                      label="measured" if not row else "_measured")  # fmt: skip
    set_row_scale(axis, [abs(case.measured.value) for case in cases])
    axis.set_yticks(rows, [wrap_label(case.label) for case in cases], fontsize=8)
    axis.set_ylim(len(cases) - 0.5, -0.5)
    style_axis(axis)
    place_legend(axis)
    return figure


def set_row_scale(axis: axes.Axes, sizes: Sequence[float]) -> None:
    """Use a symmetric logarithmic scale if values span several orders of magnitude."""
    largest, smallest = max(sizes), min((size for size in sizes if size), default=0.0)
    if largest > MAX_LINEAR_RATIO * smallest > 0:
        threshold = max(smallest, largest / 1e4)
        axis.set_xscale("symlog", linthresh=threshold)
        decades = [10.0**power for power in range(ceil(log10(threshold)) + 1, ceil(log10(largest)) + 1)]
        axis.set_xticks([0.0, *decades])


def mark_prediction(axis: axes.Axes, prediction: Prediction | None, row: float, color: str, name: str) -> None:
    """Draw a predicted value as a bar of its tolerance, or a bound as an arrow in the permitted direction."""
    if prediction is None:
        return
    label = f"_{name}" if any(name == text for text in axis.get_legend_handles_labels()[1]) else name
    if isinstance(prediction, Near):
        axis.errorbar([prediction.value], [row], xerr=prediction.within, fmt="|", color=color, markersize=9,
                      markeredgewidth=1.8, elinewidth=3, alpha=0.85, label=label)  # fmt: skip
    else:
        marker = {AtLeast: "$\\rightarrow$", AtMost: "$\\leftarrow$"}[type(prediction)]
        axis.plot([prediction.value], [row], marker=marker, color=color, markersize=10, linestyle="none", label=label)


def wrap_label(label: str, width: int = 44) -> str:
    """Break a label into lines of at most ``width`` characters."""
    import textwrap

    return "\n".join(textwrap.wrap(label, width))


def place_legend(axis: axes.Axes, *named: Sequence[Any]) -> None:
    """Place the legend to the right of the plot.

    Args:
        axis: The axis.
        *named: Handles and labels. Default: all of the axis's own.
    """
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axis.legend(*named, frameon=False, labelcolor=INK, fontsize=8, **beside)
