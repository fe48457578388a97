"""Write results to a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from vitreous.draw.inline import inline_svg
from vitreous.files import write_atomically
from vitreous.lab.claim import Case, Claim
from vitreous.lab.formula import as_svg
from vitreous.lab.outcome import ClaimOutcome, Verdict
from vitreous.lab.table import NAMES, PARTS, find_experiment
from vitreous.lab.words import RULE, deciding_evidence, format_estimate, tally
from vitreous.pages import html

STYLE = """
article { margin: 2.5rem 0; padding-top: 1.25rem; border-top: 1px solid var(--line) }
h3 { margin: 0 0 0.75rem; font-size: 1.1rem }
h3 .soft { font-weight: 400 }
.verdict { display: inline-block; padding: 0.05rem 0.6rem; border-radius: 1rem; font-size: 0.85rem; font-weight: 600;
  white-space: nowrap; color: #fff; background: #5d666f }
.holds { background: #1a7f4e }
.care { background: #9a6700 }
.refuted { background: #b3321b }
.broken { background: #d1006c }
dl.claim { display: grid; grid-template-columns: 8.5rem 1fr; gap: 0.6rem 1rem; margin: 0 0 1rem; max-width: 50rem }
dl.claim dt { color: var(--soft); font-size: 0.9rem }
dl.claim dd { margin: 0 }
.formula { display: block; margin: 0.5rem 0 0.2rem; max-width: 100%; height: auto }
.source { font-size: 0.85rem }
.contents { margin-top: 1.25rem }
.contents a { color: inherit }
.contents th, .contents td { padding: 0.3rem 1rem 0.3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line) }
td.agrees { color: #1a7f4e }
td.disagrees { color: #b3321b }
@media (prefers-color-scheme: dark) { td.agrees { color: #4cc38a } td.disagrees { color: #ff8a70 } }
@media (max-width: 40rem) { dl.claim { grid-template-columns: 1fr; gap: 0.2rem } }
"""
CLASSES = {Verdict.HOLDS: "holds", Verdict.CARE: "care", Verdict.REFUTED: "refuted", Verdict.BROKEN: "broken"}


def write_page(path: Path, outcomes: Sequence[ClaimOutcome]) -> None:
    """Write all outcomes in the order of the claims, below a table of verdicts."""
    ordered = sorted(outcomes, key=lambda outcome: NAMES.index(outcome.name))
    parts = [
        html.section(part, "".join(article(outcome) for outcome in ordered if outcome.name in names))
        for part, names in PARTS.items()
        if any(outcome.name in names for outcome in ordered)
    ]
    rule = f'<p class="reading">{escape(RULE)}</p>'
    contents = html.section("Verdicts", rule + contents_table(ordered))
    subtitle = f"Textbook claims about vision transformers, tested by experiment: {tally(ordered)}."
    notes = ["Quick mode: fewer settings and seeds."] if any(outcome.quick for outcome in ordered) else []
    origin = "from experiments on its layers, models and training loop"
    write_atomically(
        path, html.page("The laboratory", subtitle, [contents, *parts], notes, origin=origin, style=STYLE).encode()
    )


def contents_table(outcomes: Sequence[ClaimOutcome]) -> str:
    head = "<tr><th></th><th>claim</th><th>verdict</th><th>decided by</th></tr>"
    rows = "".join(map(contents_row, outcomes))
    return f'<table class="contents"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def contents_row(outcome: ClaimOutcome) -> str:
    experiment = find_experiment(outcome.name)
    link = f'<a href="#{outcome.name}">{escape(experiment.claim.title)}</a>'
    cells = (str(experiment.number), link, badge(outcome.verdict), escape(deciding_evidence(outcome)))
    return "<tr>" + "".join(f"<td>{content}</td>" for content in cells) + "</tr>"


def badge(verdict: Verdict) -> str:
    return f'<span class="verdict {CLASSES.get(verdict, "open")}">{verdict}</span>'


def article(outcome: ClaimOutcome) -> str:
    """Render a claim: statement, correction, figure, table of cases and practical meaning."""
    experiment = find_experiment(outcome.name)
    heading = f"<h3>{experiment.number} · {escape(experiment.claim.title)} {badge(outcome.verdict)}</h3>"
    drawing = cases = ""
    if outcome.cases:
        figure = experiment.draw(outcome)
        width = round(figure.get_figwidth() * 110)
        drawing = html.drawing(inline_svg(figure, outcome.name, deciding_evidence(outcome)), width=width)
        cases = html.folded(f"All {len(outcome.cases)} cases", case_table(outcome.cases))
    left_out = "".join(f'<p class="reading">Note: {escape(note)}.</p>' for note in outcome.left_out)
    description = description_list(experiment.claim, outcome)
    return f'<article id="{outcome.name}">{heading}{description}{drawing}{cases}{left_out}</article>'


def description_list(claim: Claim, outcome: ClaimOutcome) -> str:
    """Render statement, correction, measurement and practical meaning."""
    sources = escape("; ".join(claim.sources))
    rows = {
        "Claim": f'{escape(claim.statement)}{formula(claim.formula)}<div class="soft source">{sources}</div>',
        "Correct": f"{escape(claim.right)}{formula(claim.right_formula)}",
        "Measured": escape(deciding_evidence(outcome)),
        "In practice": escape(claim.meaning),
    }
    return '<dl class="claim">' + "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows.items()) + "</dl>"


def formula(tex: str) -> str:
    return as_svg(tex) if tex else ""


def case_table(cases: Sequence[Case]) -> str:
    columns = ("case", "text", "correct", "measured", "")
    head = html.table_row("th", columns, 1)
    rows = "".join(case_row(case) for case in cases)
    return f'<div class="scroll"><table class="list"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def case_row(case: Case) -> str:
    judged = str(case.document.judge(case.measured)) if case.document else ""
    predictions = (str(case.document or "–"), str(case.right or "–"), format_estimate(case.measured))
    cells = "".join(f"<td>{escape(text)}</td>" for text in predictions)
    return f'<tr><td class="word">{escape(case.label)}</td>{cells}<td class="{judged}">{judged}</td></tr>'
