"""Formulas as drawings: a page that needs nothing but itself cannot ask a server to typeset them."""

from __future__ import annotations

from functools import cache
from html import escape

#: Pixels per em of the page's text.
EM = 19.0


@cache
def as_svg(tex: str) -> str:
    """A TeX formula as one SVG path in the page's ink."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    displayed = tex.replace(r"\frac", r"\dfrac")  # a fraction in a line of text would be small
    path = TextPath((0, 0), f"${displayed}$", size=EM, prop=FontProperties(math_fontfamily="cm"))
    box = path.get_extents()
    width, height = box.width + 2, box.height + 2
    drawn = " ".join(step(list(vertices), int(code)) for vertices, code in path.iter_segments(curves=True))
    return (
        f'<svg class="formula" role="img" aria-label="{escape(tex)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{box.x0 - 1:.1f} {-box.y1 - 1:.1f} {width:.1f} {height:.1f}">'
        f'<path transform="scale(1 -1)" fill="currentColor" d="{drawn}"/></svg>'
    )


def step(vertices: list[float], code: int) -> str:
    """One segment of a path in SVG's language: move, line, curve or close."""
    letter = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}[code]
    return letter + ("" if letter == "Z" else " ".join(f"{value:.1f}" for value in vertices))
