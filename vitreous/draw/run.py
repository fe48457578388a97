"""Figures of a training run: learning curves, a reliability diagram, and images with attention maps."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.draw.inline import as_svg
from vitreous.draw.overlay import overlay
from vitreous.draw.style import BLUE, INK, ORANGE, style_axis
from vitreous.tasks.metrics import Reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 400

Line = tuple[list[float], list[float]]


def learning_curve(measure: str, lines: dict[str, Line]) -> str:
    """Draw a learning curve: lines (steps, values) by name, as SVG."""
    figure = new_figure(3.4, 2.7)
    axis = figure.subplots()
    for name, line in lines.items():
        validation = name == "validation"
        style = {"color": ORANGE, "marker": "o", "markersize": 3} if validation else {"color": BLUE}
        axis.plot(*binned_means(line), label=name, linewidth=1.4, **style)
    axis.set_title(measure, loc="left", color=INK, fontsize=11)
    axis.set_xlabel("step")
    style_axis(axis)
    if len(lines) > 1:
        axis.legend(frameon=False, labelcolor=INK)
    return as_svg(figure, measure)


def binned_means(line: Line) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Average a long line in bins, which keeps the page small and suppresses noise."""
    steps, values = (np.asarray(part, dtype=np.float64) for part in line)
    width = -(-len(steps) // MAX_POINTS)
    starts = np.arange(0, len(steps), max(1, width))
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def reliability_diagram(bins: Reliability) -> str:
    """Draw accuracy over confidence, and below it the number of predictions per bin."""
    figure = new_figure(5.2, 4.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width = np.diff(bins.edges)
    style: dict[str, Any] = {"align": "edge", "width": width, "edgecolor": "none"}
    upper.bar(bins.edges[:-1], np.nan_to_num(bins.accuracy), color=BLUE, alpha=0.75, **style)
    upper.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=(0, (4, 3)))
    upper.plot(bins.confidence, bins.accuracy, color=ORANGE, marker="o", markersize=4, linestyle="none")
    upper.set_ylabel("accuracy")
    upper.set_ylim(0, 1)
    lower.bar(bins.edges[:-1], bins.count, color=BLUE, alpha=0.4, **style)
    lower.set_ylabel("predictions")
    lower.set_xlabel("confidence")
    lower.set_xlim(0, 1)
    for axis in (upper, lower):
        style_axis(axis)
    return as_svg(figure, "reliability")


def panels(image: NDArray[np.uint8], heat: NDArray[np.float32] | None) -> list[bytes]:
    """Render an image (c, y, x) as PNG, and a second one with the attention map over it, if given."""
    buffer = io.BytesIO()
    rows = image.transpose(1, 2, 0)
    Image.fromarray(rows[..., 0] if rows.shape[2] == 1 else rows[..., :3]).save(buffer, "PNG")
    return [buffer.getvalue()] if heat is None else [buffer.getvalue(), heat_image(image, heat)]


def heat_image(image: NDArray[np.uint8], heat: NDArray[np.float32]) -> bytes:
    from matplotlib.figure import Figure

    height, width = image.shape[1:]
    figure = Figure(figsize=(2 * width / max(image.shape[1:]), 2 * height / max(image.shape[1:])), dpi=104)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    overlay(axis, image, torch.from_numpy(heat.astype(np.float32)))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="none")
