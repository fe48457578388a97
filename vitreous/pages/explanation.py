"""Write explanations as self-contained HTML pages of one or two models, and an index of several pages."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from vitreous.draw.inline import data_uri, image_tag
from vitreous.draw.overlay import displayable
from vitreous.explain.explanation import Explanation
from vitreous.files import write_atomically
from vitreous.pages import html
from vitreous.pages.explanation_sections import SECTIONS, Section

STYLE = """
.side { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem 2.5rem }
.side > div { min-width: 0 }
h3 { margin: 0 0 0.75rem; font-size: 1rem; font-weight: 600; overflow-wrap: anywhere }
.answer { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; margin-top: 1rem }
.answer img { width: min(100%, 18rem); border-radius: 4px }
.answer > div { flex: 1 1 16rem }
.verdict { margin: 0 0 1rem; padding: 0.8rem 1rem; border-left: 3px solid rgb(var(--blue)); background: var(--panel) }
.wide svg { min-width: min(var(--width), 30rem) }
.list td.word { min-width: 6.5rem; overflow-wrap: break-word }
.missing { color: var(--soft); font-style: italic }
.reading b { font-weight: 600; color: var(--ink) }
.gallery a { color: inherit; text-decoration: none }
.gallery a:hover figcaption { text-decoration: underline }
.gallery img { width: 100%; height: 10rem; image-rendering: auto }
"""
BESIDE = "body { max-width: 96rem }"
THUMBNAIL = 208


def write_page(path: Path, explanations: Sequence[Explanation]) -> None:
    """Write the page of one image; explanations of two models are shown side by side."""
    if len({explanation.title for explanation in explanations}) > 1:
        raise ValueError("explanations must be of the same image, got " + " and ".join(p.title for p in explanations))
    names = " and ".join(explanation.model for explanation in explanations)
    style = STYLE + (BESIDE if len(explanations) > 1 else "")
    body = [section(part, explanations) for part in SECTIONS]
    subtitle = f"Prediction of {names}, explained"
    origin = "with vt.explain"
    page = html.page(explanations[0].title, subtitle, body, [], origin=origin, style=style)
    write_atomically(path, page.encode())


def section(part: Section, explanations: Sequence[Explanation]) -> str:
    """One heading, the figure of every model or the reason why it is missing, and one explanation for all."""
    drawn, any_drawn = [], False
    for index, explanation in enumerate(explanations):
        try:
            body = part.draw(explanation, str(index))
            any_drawn = True
        except ValueError as reason:
            body = f'<p class="missing">{escape(sentence(str(reason)))}</p>'
        drawn.append(body if len(explanations) == 1 else f"<div><h3>{escape(explanation.model)}</h3>{body}</div>")
    together = drawn[0] if len(drawn) == 1 else f'<div class="side">{"".join(drawn)}</div>'
    words = (("How to read it.", part.reading), ("Limits.", part.limits))
    below = "".join(f'<p class="reading"><b>{head}</b> {escape(text)}</p>' for head, text in words)
    return html.section(part.title, together + (below if any_drawn else ""))


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


@dataclass(frozen=True)
class IndexEntry:
    """An image in the index: its page (relative to the index), a thumbnail, and the models' predictions."""

    page: str
    title: str
    thumbnail: bytes
    predictions: tuple[str, ...]

    @classmethod
    def of(cls, page: str, explanations: Sequence[Explanation]) -> IndexEntry:
        thumbnail = Image.fromarray(displayable(explanations[0].image))
        thumbnail.thumbnail((THUMBNAIL, THUMBNAIL))
        buffer = io.BytesIO()
        thumbnail.save(buffer, "WEBP", quality=80)
        best = (explanation.answer.best(1)[0] for explanation in explanations)
        return cls(page, explanations[0].title, buffer.getvalue(), tuple(f"{name} {share:.1%}" for name, share in best))


def link(entry: IndexEntry) -> str:
    predictions = "".join(f'<br><span class="soft">{escape(prediction)}</span>' for prediction in entry.predictions)
    thumbnail = image_tag(data_uri("webp", entry.thumbnail), entry.title)
    caption = f"<figcaption>{escape(entry.title)}{predictions}</figcaption>"
    return f'<a href="{quote(entry.page)}"><figure>{thumbnail}{caption}</figure></a>'


def write_index(path: Path, models: Sequence[str], entries: Sequence[IndexEntry], skipped: dict[str, str]) -> None:
    """Write an index of thumbnails with predictions that link to the pages, and a list of skipped files."""
    links = "".join(link(entry) for entry in entries)
    notes = [f"{name} was skipped: {reason}." for name, reason in skipped.items()]
    subtitle = f"Predictions of {' and '.join(models)}, explained"
    title = f"{len(entries):,} image{'s' if len(entries) != 1 else ''}"
    body = [html.section("Images", f'<div class="gallery">{links}</div>', "Select an image to open its page.")]
    origin = "with vt.explain"
    write_atomically(path, html.page(title, subtitle, body, notes, origin=origin, style=STYLE).encode())
