"""Figures of measures by layer, token norms, the logit lens, and deletion and insertion curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from vitreous.draw.overlay import Array, to_float32
from vitreous.draw.style import BLUE, INK, LINES, ORANGE, side_by_side, style_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Class names are plain text, even with dollar signs.
TEXT_STYLE: dict[str, Any] = {"fontsize": 8, "color": INK, "ha": "left", "va": "bottom", "parse_math": False}


def layers_figure(panels: Mapping[str, Mapping[str, Float[Array, " h"]]]) -> Figure:
    """Draw one panel per measure (name with unit → layer → values per head): a dot per head and a line of means."""
    figure, axes = side_by_side(len(panels))
    for axis, (measure, layers) in zip(axes, panels.items(), strict=True):
        heads = [to_float32(values).flatten().numpy() for values in layers.values()]
        positions = np.concatenate([np.full(len(values), index) for index, values in enumerate(heads)])
        axis.scatter(positions, np.concatenate(heads), s=14, color=BLUE, alpha=0.45, linewidths=0, label="one head")
        means = [float(np.nanmean(values)) if np.isfinite(values).any() else np.nan for values in heads]
        axis.plot(range(len(heads)), means, color=ORANGE, linewidth=1.6, marker="o", markersize=3, label="mean")
        axis.set_ylim(bottom=0)
        style_blocks_axis(axis, measure, list(layers))
    axes[0].legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure


def norms_figure(norms: Mapping[str, Float[Array, " n"]], outliers: Mapping[str, Bool[Array, " n"]]) -> Figure:
    """Draw the token norms of each layer: median, 5 % to 95 % quantiles, and outliers as single points."""
    figure, (axis,) = side_by_side(1)
    values = [to_float32(lengths).flatten().numpy() for lengths in norms.values()]
    is_outlier = [np.asarray(to_float32(outliers[name]).flatten().numpy(), dtype=bool) for name in norms]
    with np.errstate(invalid="ignore"):  # damaged weights give infinite norms, whose quantiles are undefined
        low, middle, high = (np.array([np.quantile(v, q) for v in values]) for q in (0.05, 0.5, 0.95))
    positions = np.arange(len(values))
    axis.fill_between(positions, low, high, color=BLUE, alpha=0.25, linewidth=0, label="5 % to 95 %")
    axis.plot(positions, middle, color=BLUE, linewidth=1.6, marker="o", markersize=3, label="median")
    found = np.concatenate([v[o] for v, o in zip(values, is_outlier, strict=True)])
    if len(found):
        where = np.concatenate([np.full(int(o.sum()), index) for index, o in enumerate(is_outlier)])
        axis.scatter(where, found, s=18, color=ORANGE, marker="D", linewidths=0, label="outlier tokens")
    axis.set_ylim(bottom=0)
    style_blocks_axis(axis, "token norm (L2)", list(norms))
    axis.legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure


def lens_figure(answers: Mapping[str, tuple[str, float]], target: Mapping[str, float], *, target_name: str) -> Figure:
    """Draw the logit lens: the top class and its probability after each layer, and the probability of the target."""
    figure, (axis,) = side_by_side(1, width=8.4)
    best = [probability for _, probability in answers.values()]
    axis.plot(range(len(best)), best, color=BLUE, linewidth=1.6, marker="o", markersize=4, label="top class")
    axis.plot(range(len(best)), [target[name] for name in answers], color=ORANGE, linewidth=1.6, label=target_name)
    before = None
    for index, (name, probability) in enumerate(answers.values()):
        if name != before:
            shown = name if len(name) <= 18 else f"{name[:17]}…"
            axis.annotate(shown, (index, probability), (2, 6), textcoords="offset points", rotation=28, **TEXT_STYLE)
        before = name
    axis.set_xlim(-0.3, len(best) + 0.4)
    axis.set_ylim(0, max(0.1, 1.45 * max(best)))
    style_blocks_axis(axis, "probability", list(answers))
    axis.set_yticks([tick for tick in axis.get_yticks() if tick <= 1])
    legend = axis.legend(frameon=False, labelcolor=INK, fontsize=8, loc="upper left")
    legend.get_texts()[1].set_parse_math(False)
    return figure


def curves_figure(
    panels: Mapping[str, Mapping[str, Float[Array, " steps"]]],
    *,
    bands: Mapping[str, Float[Array, "k steps"]] | None = None,
) -> Figure:
    """Draw deletion and insertion curves (panel → method → probabilities), and the range of random maps as a band."""
    figure, axes = side_by_side(len(panels), width=4.2, height=3.1)
    for axis, (title, methods) in zip(axes, panels.items(), strict=True):
        if bands and title in bands:
            orders = to_float32(bands[title]).numpy()
            axis.fill_between(cell_fractions(orders[0]), orders.min(axis=0), orders.max(axis=0), color=INK, alpha=0.16,
                              linewidth=0, label=f"{len(orders)} random maps")  # fmt: skip
        for (name, curve), (color, dashes) in zip(methods.items(), LINES * (1 + len(methods)), strict=False):
            values = to_float32(curve).numpy()
            axis.plot(cell_fractions(values), values, color=color, linestyle=dashes, linewidth=1.5, label=name)
        axis.set_xlim(0, 1)
        axis.set_xlabel(title, fontsize=9)
        axis.set_ylabel("probability of the class", fontsize=9)
        style_axis(axis)
    top = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(0, min(1.02, max(0.1, top)))
    axes[-1].legend(frameon=False, labelcolor=INK, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def cell_fractions(curve: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.linspace(0, 1, len(curve))


def style_blocks_axis(axis: Axes, measure: str, layers: Sequence[str]) -> None:
    """Set the title, and a tick per block with at most 12 labels."""
    axis.set_title(measure, loc="left", color=INK, fontsize=9.5)
    step = -(-len(layers) // 12)
    labels = [layer.removeprefix("blocks.") for layer in layers]
    axis.set_xticks(range(0, len(layers), step), labels[::step])
    axis.set_xlabel("block")
    style_axis(axis)
