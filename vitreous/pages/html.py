"""Building blocks of self-contained HTML pages: no scripts, no network access, light and dark mode."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

#: Largest confusion matrix with counts in its cells.
MAX_CLASSES_WITH_COUNTS = 16

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5d666f; --line: #dfe3e7; --paper: #ffffff; --panel: #f5f7f9;
  --blue: 0 114 178; --orange: 213 94 0 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa4ad; --line: #343b42; --paper: #15191d;
  --panel: #1e2328; --blue: 38 145 208; --orange: 226 110 22 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.015em; overflow-wrap: anywhere }
h2 { margin: 3rem 0 0.75rem; font-size: 1.2rem; letter-spacing: -0.005em }
.soft, .reading { color: var(--soft) }
.reading { margin: 0.6rem 0 0; max-width: 46rem; font-size: 0.9rem }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 0.75rem;
  margin: 1.75rem 0 0 }
.cards div { padding: 0.8rem 1rem; border-radius: 0.5rem; background: var(--panel) }
.cards dt { font-size: 0.8rem; color: var(--soft) }
.cards dd { margin: 0.1rem 0 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums }
.drawing { display: flex; flex-wrap: wrap; gap: 0.5rem }
.drawing svg { flex: 1 1 17rem; min-width: 0; height: auto; max-width: var(--width) }
.drawing text { font-family: inherit !important }
.scroll { overflow: auto; max-height: 46rem }
.tall { max-height: none }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums }
.list th, .list td { padding: 0.28rem 1.5rem 0.28rem 0; text-align: right; border-bottom: 1px solid var(--line) }
.list .word { text-align: left; overflow-wrap: anywhere }
.list thead th { position: sticky; top: 0; background: var(--paper); color: var(--soft); font-weight: 500 }
.bars { display: grid; grid-template-columns: fit-content(12rem) minmax(8rem, 26rem); gap: 0.3rem 0.8rem;
  align-items: center; margin-bottom: 1.5rem; font-size: 0.9rem; overflow-wrap: anywhere }
.bars div { position: relative; height: 0.9rem; background: linear-gradient(var(--ink), var(--ink)) var(--chance) / 1px
  100% no-repeat var(--panel) }
.bars i { position: absolute; top: 0.1rem; bottom: 0.1rem }
.bars .right { background: rgb(var(--blue)) }
.bars .wrong { background: rgb(var(--orange)) }
.matrix { font-size: 0.8rem }
.matrix th { padding: 0 0.5rem; font-weight: 400; text-align: right; white-space: nowrap }
.matrix thead th { padding: 0.4rem 0; vertical-align: bottom; text-align: center }
.matrix thead span { writing-mode: vertical-rl; transform: rotate(180deg); line-height: 1 }
.matrix td { min-width: var(--cell); height: var(--cell); padding: 0; text-align: center; background: var(--panel);
  border: 1px solid var(--paper) }
.matrix td.right { background: rgb(var(--blue) / var(--share)) }
.matrix td.wrong { background: rgb(var(--orange) / var(--share)) }
.matrix td.strong { color: #fff }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(13.5rem, 1fr)); gap: 1.25rem 1rem }
.gallery figure { margin: 0 }
.gallery .pair { display: flex; gap: 2px; align-items: flex-start }
.gallery img { width: 6.5rem; min-width: 0; aspect-ratio: 1; object-fit: contain; border-radius: 3px;
  image-rendering: pixelated; background: var(--panel) }
.gallery figcaption { margin-top: 0.35rem; font-size: 0.85rem; line-height: 1.35; overflow-wrap: anywhere }
summary { cursor: pointer; font-size: 0.95rem }
details table { margin-top: 0.75rem }
footer { margin-top: 3.5rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 0.85rem;
  color: var(--soft) }
@media print { .scroll { max-height: none; overflow: visible } section { break-inside: avoid } }
"""


def page(
    title: str,
    subtitle: str,
    body: Iterable[str],
    notes: Sequence[str],
    *,
    origin: str = "from the files of the run",
    style: str = "",
) -> str:
    """A complete page: heading, sections (``body``), and a footer with notes and origin."""
    footer = "".join(f"<p>{escape(note)}</p>" for note in (*notes, f"Written by Vitreous {origin}."))
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>",
            f'<header><h1>{escape(title)}</h1>\n<div class="soft">{escape(subtitle)}</div></header>',
            *body,
            f"<footer>{footer}</footer>\n</body>\n</html>\n",
        )
    )


def section(title: str, body: str, reading: str = "") -> str:
    """A heading, its content, and an optional paragraph on how to read it."""
    below = f'\n<p class="reading">{escape(reading)}</p>' if reading else ""
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}{below}\n</section>"


def cards(facts: Iterable[tuple[str, str]]) -> str:
    """A row of key figures: (name, value)."""
    return (
        '<dl class="cards">'
        + "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
        + "</dl>"
    )


def drawing(*drawings: str, width: int) -> str:
    """SVG figures side by side where there is room, each at most ``width`` pixels wide."""
    return f'<div class="drawing" style="--width: {width}px">{"".join(drawings)}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table whose first ``words`` columns are left-aligned text, the others numbers."""
    head = table_row("th", columns, words)
    body = "".join(table_row("td", cells, words) for cells in rows)
    return f'<div class="scroll"><table class="list"><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def table_row(tag: str, cells: Sequence[str], words: int) -> str:
    kinds = [' class="word"' if index < words else "" for index in range(len(cells))]
    return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for k, c in zip(kinds, cells, strict=True)) + "</tr>"


def bars(names: Sequence[str], values: Sequence[float], *, chance: float = 0.0) -> str:
    """One bar per name on a scale from 0 to 1, starting at ``chance``; values below it are orange."""
    rows = "".join(
        f'<span>{escape(name)}</span><div><i class="{"right" if value >= chance else "wrong"}" '
        f'style="left: {min(value, chance):.1%}; width: {abs(value - chance):.1%}"></i></div>'
        for name, value in zip(names, values, strict=True)
    )
    return f'<div class="bars" style="--chance: {chance:.0%}">{rows}</div>'


def matrix(counts: NDArray[np.int64], names: Sequence[str]) -> str:
    """A confusion matrix with cells colored by their fraction of the row, and with counts if it is small.

    Opacity is the square root of the fraction, which keeps rare confusions visible.
    """
    shares = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    heads = "".join(f"<th><span>{escape(name)}</span></th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(cell(counts, shares, names, (i, j)) for j in range(len(names)))}</tr>"
        for i, name in enumerate(names)
    )
    size = "2.6rem" if len(names) <= MAX_CLASSES_WITH_COUNTS else "1rem"
    corner = '<th class="soft">true ↓ predicted →</th>'
    return (
        f'<div class="scroll tall"><table class="matrix" style="--cell: {size}">'
        f"<thead><tr>{corner}{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def cell(counts: NDArray[np.int64], shares: NDArray[np.float64], names: Sequence[str], at: tuple[int, int]) -> str:
    count, share = int(counts[at]), float(shares[at])
    if not count:
        return "<td></td>"
    kind = "right" if at[0] == at[1] else "wrong"
    strong = " strong" if share > 0.6 else ""
    tooltip = escape(f"{names[at[0]]} predicted as {names[at[1]]}: {count:,} ({share**2:.1%})")
    text = f"{count:,}" if len(names) <= MAX_CLASSES_WITH_COUNTS else ""
    return f'<td class="{kind}{strong}" style="--share: {share:.2f}" title="{tooltip}">{text}</td>'


def gallery(items: Iterable[tuple[Sequence[bytes], str, str]]) -> str:
    """A grid of figures: PNG images side by side, a title, and a second line."""
    return f'<div class="gallery">{"".join(figure(*item) for item in items)}</div>'


def figure(panels: Sequence[bytes], title: str, below: str) -> str:
    sources = (f"data:image/png;base64,{base64.b64encode(panel).decode()}" for panel in panels)
    images = "".join(f'<img src="{source}" alt="{escape(title)}">' for source in sources)
    caption = f'{escape(title)}<br><span class="soft">{escape(below)}</span>'
    return f'<figure><div class="pair">{images}</div><figcaption>{caption}</figcaption></figure>'


def folded(summary: str, body: str) -> str:
    """Content that is collapsed until its summary is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
