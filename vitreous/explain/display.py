"""How evidence shows itself on request: as HTML in a notebook, and as a page.

Evidence knows no drawing. What draws it lies above (``draw/``, ``pages/``) and is found by its name when somebody asks
to see something, as the public names of ``vitreous`` are; so evidence is computed without matplotlib.
"""

from __future__ import annotations

import importlib
from typing import Any

DRAWN_BY = {
    "trace": "vitreous.draw.notebook:trace_html",
    "explanation": "vitreous.draw.notebook:explanation_html",
    "page": "vitreous.pages.explanation:write_page",
}


def display(what: str, *arguments: Any) -> Any:
    """Call what draws a trace, an explanation or a page."""
    module, name = DRAWN_BY[what].split(":")
    return getattr(importlib.import_module(module), name)(*arguments)
