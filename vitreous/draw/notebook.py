"""HTML representations of traces and explanations for notebooks."""

from __future__ import annotations

from vitreous.draw.inline import as_html
from vitreous.draw.maps import methods_figure, trace_figure
from vitreous.explain.explanation import Explanation
from vitreous.explain.trace import Trace


def trace_html(trace: Trace) -> str:
    """Draw the attention of a trace; if nothing can be drawn, show its shapes and the reason."""
    try:
        return as_html(trace_figure(trace), alt=str(trace))
    except ValueError as reason:
        return f"<pre>{trace}\n({reason})</pre>"


def explanation_html(explanation: Explanation) -> str:
    """Draw the attribution maps of every method over the image."""
    heats = {name: one.heat for name, one in explanation.methods.items()}
    return as_html(methods_figure(explanation.image, heats), repr(explanation))
