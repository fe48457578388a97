"""vitreous lab, vitreous lab run"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from vitreous.cli.arguments import defaults_to
from vitreous.cli.display import out, print_fitting, table
from vitreous.lab.outcome import ClaimOutcome, Verdict
from vitreous.lab.run import latest_result, run_all
from vitreous.lab.table import NAMES, find_experiment
from vitreous.lab.trial import Trial
from vitreous.lab.words import deciding_evidence, tally

Names = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME|all", help_behavior_hint="(required)")
]

COLORS = {Verdict.HOLDS: "green", Verdict.CARE: "yellow", Verdict.REFUTED: "red", Verdict.BROKEN: "bold magenta"}

COLUMNS = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))

ONE_LINE: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}


def lab(folder: Path = Path("runs/lab")) -> None:
    """List the tested claims, with the verdict of those already run.

    Args:
        folder: Folder with the results.
    """
    results = {name: latest_result(name, folder) for name in NAMES}
    rows = [
        (f"{number:2} {name}", styled(found.verdict) if found else Text("–"), find_experiment(name).claim.title)
        for number, (name, found) in enumerate(results.items(), start=1)
    ]
    columns = ("claim", "verdict", "subject")
    short = table("The laboratory", columns[:2], [row[:2] for row in rows], left=2)
    print_fitting(table("The laboratory", columns, rows, left=3), short)
    out.print(
        "[dim]vitreous lab run NAME --quick tests one claim in seconds, vitreous lab run all --quick all of them in a "
        "minute or two.[/dim]"
    )


def run_claims(
    names: Names,
    quick: bool = False,
    weights: Annotated[str, defaults_to("skip these experiments")] = "",
    photos: Annotated[str, defaults_to("synthetic scenes")] = "",
    cifar: Annotated[str, defaults_to("synthetic scenes")] = "",
    jobs: Annotated[int, defaults_to("one per CPU")] = os.cpu_count() or 1,
    fresh: bool = False,
    output: Path = Path("runs/lab"),
    docs: Annotated[Path | None, defaults_to("not written")] = None,
) -> None:
    """Test claims: compare predictions with measurements and write the verdicts to an HTML page with figures.

    Args:
        names: Names or numbers of claims, or all.
        quick: Fewer settings and seeds: all claims take a minute or two on two cores.
        weights: DeiT-Tiny for the experiments on pretrained weights: a file, or the name deit_tiny_16.in1k.
        photos: Photos for these experiments, a folder of class folders.
        cifar: CIFAR-10 folder for the experiments that train.
        jobs: Number of worker processes, each with one thread.
        fresh: Ignore cached results and measure again.
        output: Folder for results, trained models and the page.
        docs: Also write Markdown pages with figures to this folder.
    """
    chosen = [find_experiment(name).name for name in (NAMES if "all" in names else names)]
    trial = Trial(quick, weights, photos, cifar, output)
    if "all" in names:
        train_shared_models(trial, jobs)
    outcomes = list(print_outcomes(run_all(chosen, trial, jobs=jobs, fresh=fresh), len(chosen)))
    write_reports(outcomes, output / "lab.html", docs)
    out.print(f"\n{tally(outcomes).capitalize()}. Report with figures: {output / 'lab.html'}", soft_wrap=True)
    if any(outcome.verdict is Verdict.BROKEN for outcome in outcomes):
        raise SystemExit(1)


def train_shared_models(trial: Trial, jobs: int) -> None:
    """Train the small models that several claims share, except those already trained."""
    from vitreous.lab.sweep import runs_and_seeds
    from vitreous.lab.trained import train_all

    with Progress(*COLUMNS, console=out, transient=True) as progress:
        task = progress.add_task("training the small models shared by several claims", total=len(runs_and_seeds(trial)))
        for _ in train_all(trial, jobs):
            progress.advance(task)


def print_outcomes(outcomes: Iterator[ClaimOutcome], total: int) -> Iterator[ClaimOutcome]:
    """Print a line per finished claim above a progress bar, and yield the outcomes."""
    with Progress(*COLUMNS, console=out, transient=True) as progress:
        task = progress.add_task("claims", total=total)
        for outcome in outcomes:
            number = find_experiment(outcome.name).number
            line = Text.assemble(f"{number:2} {outcome.name:<24} ", styled(outcome.verdict, 16))
            line.append(f"{outcome.seconds:5.1f} s  ", "dim").append(deciding_evidence(outcome), "dim")
            progress.console.print(line, soft_wrap=not out.is_terminal, **(ONE_LINE if out.is_terminal else {}))
            progress.advance(task)
            yield outcome


def styled(verdict: Verdict, width: int = 0) -> Text:
    return Text(f"{verdict:<{width}}", COLORS.get(verdict, "dim"))


def write_reports(outcomes: Sequence[ClaimOutcome], page: Path, docs: Path | None) -> None:
    """Write the HTML page and, if ``docs`` is given, the Markdown pages."""
    from vitreous.lab.markdown import write_pages
    from vitreous.lab.page import write_page

    write_page(page, outcomes)
    if docs is not None:
        write_pages(docs, outcomes)
