"""Write results as Markdown pages with figures: an index, and a page per part.

``python -m vitreous.lab.markdown docs/lab`` regenerates the pages from the JSON results in that folder.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from vitreous.draw.inline import ignore_missing_glyphs
from vitreous.files import write_atomically
from vitreous.lab.claim import Case, Source
from vitreous.lab.outcome import ClaimOutcome
from vitreous.lab.table import NAMES, PARTS, Experiment, find_experiment
from vitreous.lab.words import RULE, deciding_evidence, format_estimate, tally

MARKS = {"agrees": "agrees", "disagrees": "**disagrees**", "open": "open"}


def write_pages(folder: Path, outcomes: Sequence[ClaimOutcome]) -> None:
    """Write README.md and a page per part, with figures/NAME.png and results/NAME.json."""
    for part in ("figures", "results"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        content = json.dumps(outcome.to_json(), indent=1) + "\n"
        write_atomically(folder / "results" / f"{outcome.name}.json", content.encode())
        if outcome.cases:
            write_atomically(folder / "figures" / f"{outcome.name}.png", image(find_experiment(outcome.name), outcome))
    for name, text in pages(outcomes).items():
        write_atomically(folder / name, text.encode())


def pages(outcomes: Sequence[ClaimOutcome]) -> dict[str, str]:
    """Return the pages' texts by file name."""
    ordered = sorted(outcomes, key=lambda outcome: NAMES.index(outcome.name))
    texts = {"README.md": index(ordered)}
    for part, names in PARTS.items():
        members = [section(outcome) for outcome in ordered if outcome.name in names]
        texts[f"{part.lower()}.md"] = "\n\n".join([f"# {part}", "[All verdicts](README.md)", *members]) + "\n"
    return texts


def read_results(folder: Path) -> list[ClaimOutcome]:
    """Read the JSON results written by ``write_pages``."""
    return [
        ClaimOutcome.from_json(json.loads(path.read_bytes())) for path in sorted((folder / "results").glob("*.json"))
    ]


def image(experiment: Experiment, outcome: ClaimOutcome) -> bytes:
    """Render the figure as a PNG with a palette of 64 colors, a few kilobytes in size."""
    buffer = io.BytesIO()
    with ignore_missing_glyphs():
        experiment.draw(outcome).savefig(buffer, format="png", facecolor="white", dpi=110)
    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return small.getvalue()


def index(outcomes: Sequence[ClaimOutcome]) -> str:
    lines = [
        "# The laboratory",
        f"Textbook claims about vision transformers, tested by experiment: {tally(outcomes)}.",
        RULE,
        f"The texts are five teaching documents: {'; '.join(Source)}.",
        "`vitreous lab run all` reproduces everything, `vitreous lab run NAME --quick` tests one claim in seconds. "
        "The numbers of each figure, with their provenance, are in `results/` as JSON. "
        "[Twelve review questions](questions.md) are answered with these results.",
        "\n".join(["| | claim | verdict | decided by |", "|---:|---|---|---|", *map(index_row, outcomes)]),
    ]
    return "\n\n".join(lines) + "\n"


def index_row(outcome: ClaimOutcome) -> str:
    experiment = find_experiment(outcome.name)
    home = next(part.lower() for part, names in PARTS.items() if outcome.name in names)
    link = f"[{cell(experiment.claim.title)}]({home}.md#{outcome.name})"
    return f"| {experiment.number} | {link} | {outcome.verdict} | {cell(deciding_evidence(outcome))} |"


def section(outcome: ClaimOutcome) -> str:
    experiment = find_experiment(outcome.name)
    claim = experiment.claim
    lines = [
        f'<a id="{outcome.name}"></a>',
        f"## {experiment.number} {claim.title}: {outcome.verdict}",
        f"**Claim.** {claim.statement} *({'; '.join(claim.sources)})*",
        display(claim.formula),
        f"**Correct.** {claim.right}",
        display(claim.right_formula),
        f"**Measured.** {deciding_evidence(outcome)}.",
        f"![{claim.title}](figures/{outcome.name}.png)" if outcome.cases else "",
        case_table(outcome.cases) if outcome.cases else "",
        f"**In practice.** {claim.meaning}",
        *(f"*Note: {note}.*" for note in outcome.left_out),
        f"`vitreous lab run {outcome.name}`, {outcome.seconds:.0f} s; [numbers](results/{outcome.name}.json)",
    ]
    return "\n\n".join(line for line in lines if line)


def display(tex: str) -> str:
    """Format TeX as a fenced math block, in which Markdown keeps backslashes."""
    return f"```math\n{tex}\n```" if tex else ""


def case_table(cases: Sequence[Case]) -> str:
    head = ["| case | text | correct | measured | |", "|---|---:|---:|---:|---|"]
    return "\n".join([*head, *map(case_row, cases)])


def case_row(case: Case) -> str:
    judged = MARKS[case.document.judge(case.measured)] if case.document else ""
    predictions = f"{case.document or '–'} | {case.right or '–'}"
    return f"| {cell(case.label)} | {predictions} | {format_estimate(case.measured)} | {judged} |"


def cell(text: str) -> str:
    """Escape text for a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    home = Path(sys.argv[1])
    write_pages(home, read_results(home))
