"""Numbers by layer, and curves: drawn with the page's ink, so that a report can show them in light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from vitreous.draw.overlay import Array, as_numbers
from vitreous.draw.style import BLUE, INK, LINES, ORANGE, plain, side_by_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: How names of classes are written: as they are, also with dollar signs.
WORDS: dict[str, Any] = {"fontsize": 8, "color": INK, "ha": "left", "va": "bottom", "parse_math": False}


def layers_figure(panels: Mapping[str, Mapping[str, Float[Array, " h"]]]) -> Figure:
    """One panel per measure (its name with its unit → layer → a value per head): a dot per head, a line of means."""
    figure, axes = side_by_side(len(panels))
    for axis, (measure, layers) in zip(axes, panels.items(), strict=True):
        heads = [as_numbers(values).flatten().numpy() for values in layers.values()]
        places = np.concatenate([np.full(len(values), index) for index, values in enumerate(heads)])
        axis.scatter(places, np.concatenate(heads), s=14, color=BLUE, alpha=0.45, linewidths=0, label="one head")
        means = [float(np.nanmean(values)) if np.isfinite(values).any() else np.nan for values in heads]
        axis.plot(range(len(heads)), means, color=ORANGE, linewidth=1.6, marker="o", markersize=3, label="their mean")
        axis.set_ylim(bottom=0)
        finish(axis, measure, list(layers))
    axes[0].legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure


def norms_figure(norms: Mapping[str, Float[Array, " n"]], outliers: Mapping[str, Bool[Array, " n"]]) -> Figure:
    """Lengths of a layer's tokens (name → one per token): the median, the middle nine tenths, outliers one by one."""
    figure, (axis,) = side_by_side(1)
    values = [as_numbers(lengths).flatten().numpy() for lengths in norms.values()]
    odd = [np.asarray(as_numbers(outliers[name]).flatten().numpy(), dtype=bool) for name in norms]
    with np.errstate(invalid="ignore"):  # between infinite lengths, which damaged weights give, lies none
        low, middle, high = (np.array([np.quantile(v, q) for v in values]) for q in (0.05, 0.5, 0.95))
    places = np.arange(len(values))
    axis.fill_between(places, low, high, color=BLUE, alpha=0.25, linewidth=0, label="9 of 10 tokens")
    axis.plot(places, middle, color=BLUE, linewidth=1.6, marker="o", markersize=3, label="median")
    found = np.concatenate([v[o] for v, o in zip(values, odd, strict=True)])
    if len(found):
        where = np.concatenate([np.full(int(o.sum()), index) for index, o in enumerate(odd)])
        axis.scatter(where, found, s=18, color=ORANGE, marker="D", linewidths=0, label="outlier tokens")
    axis.set_ylim(bottom=0)
    finish(axis, "length of a token (L2 norm)", list(norms))
    axis.legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure


def lens_figure(answers: Mapping[str, tuple[str, float]], target: Mapping[str, float], *, target_name: str) -> Figure:
    """What a model would say if it stopped after a layer (name → class, share), and the share of the target there."""
    figure, (axis,) = side_by_side(1, width=8.4)
    best = [share for _, share in answers.values()]
    axis.plot(range(len(best)), best, color=BLUE, linewidth=1.6, marker="o", markersize=4, label="the best class")
    axis.plot(range(len(best)), [target[name] for name in answers], color=ORANGE, linewidth=1.6, label=target_name)
    before = None
    for place, (name, share) in enumerate(answers.values()):
        if name != before:
            shown = name if len(name) <= 18 else f"{name[:17]}…"
            axis.annotate(shown, (place, share), (2, 6), textcoords="offset points", rotation=28, **WORDS)
        before = name
    axis.set_xlim(-0.3, len(best) + 0.4)
    axis.set_ylim(0, max(0.1, 1.45 * max(best)))
    finish(axis, "probability", list(answers))
    axis.set_yticks([tick for tick in axis.get_yticks() if tick <= 1])
    legend = axis.legend(frameon=False, labelcolor=INK, fontsize=8, loc="upper left")
    legend.get_texts()[1].set_parse_math(False)
    return figure


def curves_figure(
    panels: Mapping[str, Mapping[str, Float[Array, " steps"]]],
    *,
    bands: Mapping[str, Float[Array, "k steps"]] | None = None,
) -> Figure:
    """Curves from none to all of the image (panel → method → probabilities), and a band of what chance gives."""
    figure, axes = side_by_side(len(panels), width=4.2, height=3.1)
    for axis, (title, methods) in zip(axes, panels.items(), strict=True):
        if bands and title in bands:
            orders = as_numbers(bands[title]).numpy()
            axis.fill_between(shares_of(orders[0]), orders.min(axis=0), orders.max(axis=0), color=INK, alpha=0.16,
                              linewidth=0, label=f"{len(orders)} random orders")  # fmt: skip
        for (name, curve), (color, dashes) in zip(methods.items(), LINES * (1 + len(methods)), strict=False):
            values = as_numbers(curve).numpy()
            axis.plot(shares_of(values), values, color=color, linestyle=dashes, linewidth=1.5, label=name)
        axis.set_xlim(0, 1)
        axis.set_xlabel(title, fontsize=9)
        axis.set_ylabel("probability of the class", fontsize=9)
        plain(axis)
    top = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(0, min(1.02, max(0.1, top)))
    axes[-1].legend(frameon=False, labelcolor=INK, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def shares_of(curve: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.linspace(0, 1, len(curve))


def finish(axis: Axes, measure: str, layers: Sequence[str]) -> None:
    """Every layer a tick, and as many of them named as fit."""
    axis.set_title(measure, loc="left", color=INK, fontsize=9.5)
    step = -(-len(layers) // 12)
    numbers = [layer.removeprefix("blocks.") for layer in layers]
    axis.set_xticks(range(0, len(layers), step), numbers[::step])
    axis.set_xlabel("block")
    plain(axis)
