"""Figures of traces and explanations, and their HTML representations for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.draw.inline import as_html
from vitreous.draw.maps import methods_figure, trace_figure
from vitreous.explain.explanation import Explanation
from vitreous.explain.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def trace_html(trace: Trace) -> str:
    """Draw the attention of a trace; if nothing can be drawn, show its shapes and the reason."""
    try:
        return as_html(trace_figure(trace), alt=str(trace))
    except ValueError as reason:
        return f"<pre>{trace}\n({reason})</pre>"


def explanation_figure(explanation: Explanation) -> Figure:
    """Draw the attribution maps of every method over the image."""
    return methods_figure(explanation.image, {name: one.heat for name, one in explanation.methods.items()})


def explanation_html(explanation: Explanation) -> str:
    return as_html(explanation_figure(explanation), repr(explanation))
