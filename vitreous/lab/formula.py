"""Render TeX formulas to inline SVG, so that pages are self-contained and need no JavaScript typesetter."""

from __future__ import annotations

from functools import cache
from html import escape

#: Pixels per em of the page's text.
EM = 19.0


@cache
def as_svg(tex: str) -> str:
    """Render a TeX formula as an SVG path in the page's text color."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    displayed = tex.replace(r"\frac", r"\dfrac")  # \frac is small in inline style
    path = TextPath((0, 0), f"${displayed}$", size=EM, prop=FontProperties(math_fontfamily="cm"))
    box = path.get_extents()
    width, height = box.width + 2, box.height + 2
    data = " ".join(path_command(list(vertices), int(code)) for vertices, code in path.iter_segments(curves=True))
    return (
        f'<svg class="formula" role="img" aria-label="{escape(tex)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{box.x0 - 1:.1f} {-box.y1 - 1:.1f} {width:.1f} {height:.1f}">'
        f'<path transform="scale(1 -1)" fill="currentColor" d="{data}"/></svg>'
    )


def path_command(vertices: list[float], code: int) -> str:
    """Format a path segment as an SVG command: move, line, curve or close."""
    letter = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}[code]
    return letter + ("" if letter == "Z" else " ".join(f"{value:.1f}" for value in vertices))
