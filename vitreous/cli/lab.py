"""vitreous lab, vitreous lab run"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from vitreous.cli.show import out, print_fitting, table
from vitreous.lab.outcome import Outcome, Verdict
from vitreous.lab.run import latest, run_all
from vitreous.lab.table import NAMES, find
from vitreous.lab.trial import Trial
from vitreous.lab.words import decided, tally

Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME|all")]

COLORS = {Verdict.HOLDS: "green", Verdict.CARE: "yellow", Verdict.REFUTED: "red", Verdict.BROKEN: "bold magenta"}

COLUMNS = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))

ONE_LINE: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}


def lab(folder: Path = Path("runs/lab")) -> None:
    """Every claim that is put to the test, with its verdict where it was run.

    Args:
        folder: Where results are kept.
    """
    kept = {name: latest(name, folder) for name in NAMES}
    rows = [
        (f"{find(name).number:2} {name}", verdict(found.verdict) if found else Text("–"), find(name).claim.title)
        for name, found in kept.items()
    ]
    columns = ("claim", "verdict", "about")
    short = table("The laboratory", columns[:2], [row[:2] for row in rows], left=2)
    print_fitting(table("The laboratory", columns, rows, left=3), short)
    out.print(
        "[dim]vitreous lab run NAME --quick measures one in seconds, vitreous lab run all --quick every one in a "
        "minute or two.[/dim]"
    )


def run(
    names: Names,
    quick: bool = False,
    weights: str = "",
    photos: str = "",
    cifar: str = "",
    jobs: int = os.cpu_count() or 1,
    fresh: bool = False,
    output: Path = Path("runs/lab"),
    docs: Path | None = None,
) -> None:
    """Put claims to the test: predictions, measurements and verdicts, on a page with figures.

    Args:
        names: Claims by name or number, or all.
        quick: Fewer settings and seeds; everything takes a minute or two on two cores.
        weights: DeiT-Tiny for the experiments on real weights: a file, or the public name deit_tiny_16.in1k.
        photos: A folder of photos for them, in folders by class; drawn scenes stand in where there is none.
        cifar: A folder with CIFAR-10 for the experiments that train; drawn scenes stand in where there is none.
        jobs: Processes that share the work, each with one thread.
        fresh: Measure again what was measured before.
        output: Where results, trained models and the page are kept.
        docs: Also write Markdown with small figures into this folder.
    """
    chosen = [find(name).name for name in (NAMES if "all" in names else names)]
    trial = Trial(quick, weights, photos, cifar, output)
    if "all" in names:
        train_ahead(trial, jobs)
    outcomes = list(shown(run_all(chosen, trial, jobs=jobs, fresh=fresh), len(chosen)))
    write(outcomes, output / "lab.html", docs)
    out.print(f"\n{tally(outcomes).capitalize()}. The page with figures: {output / 'lab.html'}", soft_wrap=True)
    if any(outcome.verdict is Verdict.BROKEN for outcome in outcomes):
        raise SystemExit(1)


def train_ahead(trial: Trial, jobs: int) -> None:
    """The small models that several claims share; finished ones are only looked at."""
    from vitreous.lab.sweep import pairs
    from vitreous.lab.trained import train_all

    with Progress(*COLUMNS, console=out, transient=True) as progress:
        task = progress.add_task("small models, trained once for several claims", total=len(pairs(trial)))
        for _ in train_all(trial, jobs):
            progress.advance(task)


def shown(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    """A line for each claim as it is finished, above a bar."""
    with Progress(*COLUMNS, console=out, transient=True) as progress:
        task = progress.add_task("claims", total=total)
        for outcome in outcomes:
            line = Text.assemble(f"{find(outcome.name).number:2} {outcome.name:<24} ", verdict(outcome.verdict, 16))
            line.append(f"{outcome.seconds:5.1f} s  ", "dim").append(decided(outcome), "dim")
            progress.console.print(line, soft_wrap=not out.is_terminal, **(ONE_LINE if out.is_terminal else {}))
            progress.advance(task)
            yield outcome


def verdict(found: Verdict, width: int = 0) -> Text:
    return Text(f"{found:<{width}}", COLORS.get(found, "dim"))


def write(outcomes: Sequence[Outcome], page: Path, docs: Path | None) -> None:
    from vitreous.lab.markdown import write_pages
    from vitreous.lab.page import write_page

    write_page(page, outcomes)
    if docs is not None:
        write_pages(docs, outcomes)
