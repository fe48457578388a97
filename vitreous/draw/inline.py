"""Figures inside a page: nothing beside the page is needed to see them, and a text says what they show."""

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

#: What a page (``pages/html.py``) draws in the place of our colors, light or dark.
ON_PAGE = {BLUE: "rgb(var(--blue))", ORANGE: "rgb(var(--orange))", INK: "currentColor"}


def as_html(figure: Figure, alt: str) -> str:
    """A figure as an image on white, for notebooks."""
    buffer = io.BytesIO()
    with any_script():
        figure.savefig(buffer, format="png", facecolor="white")
    return image_tag("png", buffer.getvalue(), alt)


def as_drawing(figure: Figure, name: str, alt: str) -> str:
    """A figure as SVG in the page's ink, light or dark; ``name`` is its own on the page."""
    figure.set_facecolor("none")
    with any_script():
        svg = as_svg(figure, name)
    svg = re.sub(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)", lambda found: smaller(found[1]), svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)


def as_svg(figure: Figure, name: str) -> str:
    """Text stays text, colors become the page's, and no name within occurs in a drawing of another ``name``."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for ours, on_page in ON_PAGE.items():
        svg = svg.replace(ours, on_page)
    return re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)


@contextmanager
def any_script() -> Iterator[None]:
    """Classes have names in all scripts: matplotlib's own font need not know them, the reader's browser does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def smaller(png: str) -> str:
    """The data of a PNG, or of the same image as WebP where that is shorter: photographs are, by a lot."""
    content = base64.b64decode(png)
    buffer = io.BytesIO()
    Image.open(io.BytesIO(content)).save(buffer, "WEBP", quality=85)
    return data_of("webp", buffer.getvalue()) if len(buffer.getvalue()) < len(content) else data_of("png", content)


def pixels_tag(image: Array, alt: str) -> str:
    """An image (c, y, x) as it is."""
    buffer = io.BytesIO()
    Image.fromarray(displayable(image)).save(buffer, "WEBP", quality=90)
    return image_tag("webp", buffer.getvalue(), alt)


def image_tag(kind: str, content: bytes, alt: str) -> str:
    return f'<img src="{data_of(kind, content)}" alt="{escape(alt)}">'


def data_of(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
