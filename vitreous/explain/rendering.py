"""Render evidence as HTML, in a notebook or as a page, without importing matplotlib until then.

The renderers (``draw/``, ``pages/``) depend on this package and not the other way round, so they are imported by name.
"""

from __future__ import annotations

import importlib
from typing import Any

RENDERERS = {
    "trace": "vitreous.draw.notebook:trace_html",
    "explanation": "vitreous.draw.notebook:explanation_html",
    "explanation figure": "vitreous.draw.notebook:explanation_figure",
    "page": "vitreous.pages.explanation:write_page",
}


def render(kind: str, *arguments: Any) -> Any:
    """Import the renderer of a kind of evidence and call it."""
    module, name = RENDERERS[kind].split(":")
    return getattr(importlib.import_module(module), name)(*arguments)
