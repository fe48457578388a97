"""The figure that nearly every claim shares: measured dots with their intervals, what was predicted beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from math import ceil, log10
from typing import TYPE_CHECKING, Any

from vitreous.draw.style import BLUE, INK, LINES, ORANGE, plain, side_by_side
from vitreous.lab.claim import Axes, Case, Claim
from vitreous.lab.prediction import AtLeast, AtMost, Near, Prediction

if TYPE_CHECKING:
    from matplotlib import axes
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import Outcome

#: What the text says is orange and dashed, what is right blue, what was measured ink.
DOCUMENT: dict[str, Any] = {"color": ORANGE, "linestyle": (0, (4, 2)), "linewidth": 1.4}
RIGHT: dict[str, Any] = {"color": BLUE, "linestyle": "-", "linewidth": 1.4}

MOST_TICKS = 8
WIDE = 300  # times larger than the smallest: too much for one linear scale


def usual(outcome: Outcome, claim: Claim) -> Figure:
    """Lines over an axis where the cases have places on it, otherwise a row for each case."""
    placed = [case for case in outcome.cases if case.at is not None]
    if claim.axes and placed:
        return over_an_axis(placed, claim.axes)
    return in_rows(outcome.cases)


def over_an_axis(cases: Sequence[Case], names: Axes) -> Figure:
    """A line of dots for each group; what was predicted is drawn in the group's color where there are several."""
    figure, (axis,) = side_by_side(1, width=6.8, height=3.3)
    groups = {name: list(members) for name, members in groupby(cases, key=lambda case: case.group)}
    alone = len(groups) == 1
    for (name, members), (color, _) in zip(groups.items(), LINES * (1 + len(groups)), strict=False):
        for which, style in (("document", DOCUMENT), ("right", RIGHT)):
            if not shared(groups.values(), which):
                predicted(axis, members, which, style if alone else {**style, "color": color})
        dots(axis, members, INK if alone else color, name or "measured")
    for which, style in (("document", DOCUMENT), ("right", RIGHT)):
        if shared(groups.values(), which):
            predicted(axis, cases, which, {**style, "color": INK})
    axis.set_xlabel(names.x)
    axis.set_ylabel(names.y)
    scale(axis, [place(case) for case in cases], names.log)
    plain(axis)
    explain_lines(axis, cases)
    return figure


def place(case: Case) -> float:
    assert case.at is not None
    return case.at


def scale(axis: axes.Axes, places: Sequence[float], log: str) -> None:
    """Logarithmic where asked for; few places on such an axis are named themselves instead of powers of ten."""
    axis.set_yscale("log" if "y" in log else "linear")
    axis.set_xscale("log" if "x" in log else "linear")
    ticks = sorted(set(places))
    if "x" in log and len(ticks) <= MOST_TICKS:
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xticks([], minor=True)


def points(cases: Sequence[Case], which: str) -> dict[float, float]:
    """Where a prediction lies, by its place."""
    return {place(case): getattr(case, which).value for case in cases if isinstance(getattr(case, which), Near)}


def shared(groups: Collection[Sequence[Case]], which: str) -> bool:
    """Whether several groups have the very same prediction, which is then drawn once, as nobody's own."""
    lines = [points(members, which) for members in groups]
    return len(lines) > 1 and bool(lines[0]) and all(line == lines[0] for line in lines)


def predicted(axis: axes.Axes, cases: Sequence[Case], which: str, style: dict[str, Any]) -> None:
    if line := points(cases, which):
        axis.plot(list(line), list(line.values()), **style)


def dots(axis: axes.Axes, cases: Sequence[Case], color: str, name: str) -> None:
    centers = [case.measured.value for case in cases]
    below = [case.measured.value - case.measured.low for case in cases]
    above = [case.measured.high - case.measured.value for case in cases]
    axis.errorbar([place(case) for case in cases], centers, yerr=(below, above), fmt="o", markersize=4.5, capsize=2.5,
                  color=color, elinewidth=1.2, label=name, zorder=3)  # fmt: skip


def explain_lines(axis: axes.Axes, cases: Sequence[Case]) -> None:
    """The legend: groups by their dots, the two kinds of prediction by their dashes."""
    from matplotlib.lines import Line2D

    handles, labels = axis.get_legend_handles_labels()
    alone = len(handles) == 1
    for which, name, style in (("document", "the text", DOCUMENT), ("right", "what is right", RIGHT)):
        if any(isinstance(getattr(case, which), Near) for case in cases):
            handles.append(Line2D([], [], **(style if alone else {**style, "color": INK})))
            labels.append(name)
    legend(axis, handles, labels)


def curves(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], names: Axes) -> Figure:
    """One line with dots for each name: its places and its values. Later ones are thinner: none hides another."""
    figure, (axis,) = side_by_side(1, width=5.6, height=3.3)
    thickness = [1.4 + 0.8 * others for others in reversed(range(len(lines)))]
    for (name, (places, values)), (color, style), wide in zip(lines.items(), LINES, thickness, strict=False):
        axis.plot(places, values, "o", color=color, linestyle=style, linewidth=wide, markersize=3 + wide, label=name)
    axis.set_xlabel(names.x)
    axis.set_ylabel(names.y)
    axis.set_ylim(bottom=0)
    plain(axis)
    legend(axis)
    return figure


def in_rows(cases: Sequence[Case]) -> Figure:
    """One row per case: all on one scale where they share it, otherwise each on its own."""
    figure, (axis,) = side_by_side(1, width=7.6, height=0.8 + 0.42 * len(cases))
    rows = range(len(cases))
    for row, case in zip(rows, cases, strict=True):
        mark(axis, case.document, row - 0.16, ORANGE, "the text")
        mark(axis, case.right, row + 0.16, BLUE, "what is right")
        estimate = case.measured
        error = ([estimate.value - estimate.low], [estimate.high - estimate.value])
        axis.errorbar([estimate.value], [row], xerr=error, fmt="o", color=INK, markersize=4.5, capsize=2.5, zorder=3,
                      label="measured" if not row else "_measured")  # fmt: skip
    stretch(axis, [abs(case.measured.value) for case in cases])
    axis.set_yticks(rows, [wrapped(case.label) for case in cases], fontsize=8)
    axis.set_ylim(len(cases) - 0.5, -0.5)
    plain(axis)
    legend(axis)
    return figure


def stretch(axis: axes.Axes, sizes: Sequence[float]) -> None:
    """A logarithmic scale where numbers are of very different size; what is tiny beside the largest lies at zero."""
    largest, smallest = max(sizes), min((size for size in sizes if size), default=0.0)
    if largest > WIDE * smallest > 0:
        threshold = max(smallest, largest / 1e4)
        axis.set_xscale("symlog", linthresh=threshold)
        decades = [10.0**power for power in range(ceil(log10(threshold)) + 1, ceil(log10(largest)) + 1)]
        axis.set_xticks([0.0, *decades])


def mark(axis: axes.Axes, prediction: Prediction | None, row: float, color: str, name: str) -> None:
    """A predicted value as a bar as wide as its tolerance, a bound as an arrow that points to where it allows."""
    if prediction is None:
        return
    label = f"_{name}" if any(name == text for text in axis.get_legend_handles_labels()[1]) else name
    if isinstance(prediction, Near):
        axis.errorbar([prediction.value], [row], xerr=prediction.within, fmt="|", color=color, markersize=9,
                      markeredgewidth=1.8, elinewidth=3, alpha=0.85, label=label)  # fmt: skip
    else:
        marker = {AtLeast: "$\\rightarrow$", AtMost: "$\\leftarrow$"}[type(prediction)]
        axis.plot([prediction.value], [row], marker=marker, color=color, markersize=10, linestyle="none", label=label)


def wrapped(label: str, width: int = 44) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(label, width))


def legend(axis: axes.Axes, *named: Sequence[Any]) -> None:
    """Beside the drawing, where it hides nothing; ``named`` are handles and labels, where not all of the axis's own."""
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axis.legend(*named, frameon=False, labelcolor=INK, fontsize=8, **beside)
