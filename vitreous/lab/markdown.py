"""Results as Markdown with small figures, for a repository: an index, and a page for each part.

``python -m vitreous.lab.markdown docs/lab`` writes the pages again from the results that are kept there.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from vitreous.draw.inline import any_script
from vitreous.files import write_atomically
from vitreous.lab.claim import Case, Source
from vitreous.lab.outcome import Outcome
from vitreous.lab.table import NAMES, PARTS, Experiment, find
from vitreous.lab.words import RULE, decided, measured, tally

MARKS = {"agrees": "agrees", "disagrees": "**disagrees**", "open": "open"}


def write_pages(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """README.md, formulas.md …; figures/NAME.png and results/NAME.json beside them."""
    for part in ("figures", "results"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        content = json.dumps(outcome.to_json(), indent=1) + "\n"
        write_atomically(folder / "results" / f"{outcome.name}.json", content.encode())
        if outcome.cases:
            write_atomically(folder / "figures" / f"{outcome.name}.png", image(find(outcome.name), outcome))
    for name, text in pages(outcomes).items():
        write_atomically(folder / name, text.encode())


def pages(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Their names and texts."""
    ordered = sorted(outcomes, key=lambda outcome: NAMES.index(outcome.name))
    texts = {"README.md": index(ordered)}
    for part, names in PARTS.items():
        members = [section(outcome) for outcome in ordered if outcome.name in names]
        texts[f"{part.lower()}.md"] = "\n\n".join([f"# {part}", "[All verdicts](README.md)", *members]) + "\n"
    return texts


def read_results(folder: Path) -> list[Outcome]:
    """What ``write_pages`` kept."""
    return [Outcome.from_json(json.loads(path.read_bytes())) for path in sorted((folder / "results").glob("*.json"))]


def image(experiment: Experiment, outcome: Outcome) -> bytes:
    """The figure in 64 colors: sharp, and a few kilobytes."""
    buffer = io.BytesIO()
    with any_script():
        experiment.draw(outcome).savefig(buffer, format="png", facecolor="white", dpi=110)
    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return small.getvalue()


def index(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "# The laboratory",
        f"What textbooks state about vision transformers, put to the test: {tally(outcomes)}.",
        RULE,
        f"The texts are five teaching documents: {'; '.join(Source)}.",
        "`vitreous lab run all` makes all of this again, `vitreous lab run NAME --quick` one claim in seconds. "
        "Beside each figure lies a JSON with its numbers, and how they were made, in `results/`. "
        "[Twelve review questions](questions.md) are answered with these results.",
        "\n".join(["| | claim | verdict | decided by |", "|---:|---|---|---|", *map(index_row, outcomes)]),
    ]
    return "\n\n".join(lines) + "\n"


def index_row(outcome: Outcome) -> str:
    experiment = find(outcome.name)
    home = next(part.lower() for part, names in PARTS.items() if outcome.name in names)
    link = f"[{cell(experiment.claim.title)}]({home}.md#{outcome.name})"
    return f"| {experiment.number} | {link} | {outcome.verdict} | {cell(decided(outcome))} |"


def section(outcome: Outcome) -> str:
    experiment = find(outcome.name)
    claim = experiment.claim
    lines = [
        f'<a id="{outcome.name}"></a>',
        f"## {experiment.number} {claim.title}: {outcome.verdict}",
        f"**The text says.** {claim.statement} *({'; '.join(claim.sources)})*",
        display(claim.formula),
        f"**What is right.** {claim.right}",
        display(claim.right_formula),
        f"**Measured.** {decided(outcome)}.",
        f"![{claim.title}](figures/{outcome.name}.png)" if outcome.cases else "",
        case_table(outcome.cases) if outcome.cases else "",
        f"**What it means.** {claim.meaning}",
        *(f"*Note: {note}.*" for note in outcome.left_out),
        f"`vitreous lab run {outcome.name}`, {outcome.seconds:.0f} s; [numbers](results/{outcome.name}.json)",
    ]
    return "\n\n".join(line for line in lines if line)


def display(tex: str) -> str:
    """In a fence: between dollars Markdown would eat backslashes."""
    return f"```math\n{tex}\n```" if tex else ""


def case_table(cases: Sequence[Case]) -> str:
    head = ["| case | the text | what is right | measured | |", "|---|---:|---:|---:|---|"]
    return "\n".join([*head, *map(case_row, cases)])


def case_row(case: Case) -> str:
    judged = MARKS[case.document.judge(case.measured)] if case.document else ""
    predictions = f"{case.document or '–'} | {case.right or '–'}"
    return f"| {cell(case.label)} | {predictions} | {measured(case.measured)} | {judged} |"


def cell(text: str) -> str:
    """Text that stays inside its cell."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    home = Path(sys.argv[1])
    write_pages(home, read_results(home))
