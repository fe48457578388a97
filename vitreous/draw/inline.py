"""Embed figures in HTML, as inline SVG or data URIs with alternative text."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING

from PIL import Image

from vitreous.draw.overlay import Array, displayable
from vitreous.draw.style import BLUE, INK, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: CSS colors of the page (``pages/html.py``, light or dark) that replace the colors of ``style.py``.
ON_PAGE = {BLUE: "rgb(var(--blue))", ORANGE: "rgb(var(--orange))", INK: "currentColor"}


def as_html(figure: Figure, alt: str) -> str:
    """Render a figure as an image on white, for notebooks."""
    buffer = io.BytesIO()
    with ignore_missing_glyphs():
        figure.savefig(buffer, format="png", facecolor="white")
    return image_tag(smaller_data_uri(buffer.getvalue()), alt)


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """Render a figure as SVG in the colors of the page; ``name`` must be unique on the page."""
    figure.set_facecolor("none")
    with ignore_missing_glyphs():
        svg = as_svg(figure, name)
    embedded = r"data:image/png;base64,([A-Za-z0-9+/=\s]+)"
    svg = re.sub(embedded, lambda match: smaller_data_uri(base64.b64decode(match[1])), svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)


def as_svg(figure: Figure, name: str) -> str:
    """Render a figure as SVG: text stays text, colors follow the page, and element ids are unique per ``name``."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, css_color in ON_PAGE.items():
        svg = svg.replace(color, css_color)
    return re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)


@contextmanager
def ignore_missing_glyphs() -> Iterator[None]:
    """Silence warnings about glyphs that matplotlib's font lacks: the browser draws class names in any script."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def smaller_data_uri(png: bytes) -> str:
    """The data URI of a PNG, or of the same image as WebP where that is smaller, as for photographs."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).save(buffer, "WEBP", quality=85)
    return data_uri("webp", buffer.getvalue()) if len(buffer.getvalue()) < len(png) else data_uri("png", png)


def pixels_tag(image: Array, alt: str) -> str:
    """An image (c, y, x) as an HTML tag, at its own resolution."""
    buffer = io.BytesIO()
    Image.fromarray(displayable(image)).save(buffer, "WEBP", quality=90)
    return image_tag(data_uri("webp", buffer.getvalue()), alt)


def image_tag(uri: str, alt: str) -> str:
    return f'<img src="{uri}" alt="{escape(alt)}">'


def data_uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
