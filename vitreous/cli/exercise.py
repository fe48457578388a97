"""vitreous lab exercise"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape
from rich.text import Text

from vitreous.cli.show import out, print_fitting, table
from vitreous.lab.exercise import check as run_checks
from vitreous.lab.exercise import hand_out, progress, remember
from vitreous.lab.exercises.result import Result, State, without_vague
from vitreous.lab.exercises.table import EXERCISES, Exercise, find

Number = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NUMBER")]
MARKS = {
    State.PASSED: "[green]✓[/green]",
    State.FAILED: "[red]✗[/red]",
    State.NOT_WRITTEN: "[yellow]…[/yellow]",
    State.WAITING: "[dim]·[/dim]",
}
STYLES = {"done": "green", "": "dim"}


def exercise(number: Number = "", check: bool = False, hint: bool = False, folder: Path = Path("exercises")) -> None:
    """Build a vision transformer yourself, in ten exercises: a file with a task and a blank, and checks that help.

    Without a number: all exercises, and how far you are.

    Args:
        number: Hand out this exercise, 1 to 10, or its name. A file that is there already stays as it is.
        check: Check what you have written.
        hint: Say how it can be done, in a sentence or two.
        folder: Where your files lie.
    """
    if not number:
        if check or hint:
            raise ValueError("say which exercise, such as vitreous lab exercise 1 --check")
        print_all(folder)
        return
    found = find(number)
    if hint:
        out.print(f"Hint: {found.hint}", markup=False)
    if check:
        report(found, folder)
    elif not hint:
        give(found, folder)


def print_all(folder: Path) -> None:
    rows = []
    for one in EXERCISES:
        state = progress(one, folder)
        style = STYLES.get(state, "yellow")
        rows.append((str(one.number), one.title, Text(state or "not handed out", style=style)))
    print_fitting(table("Build it yourself", ("", "exercise", "state"), rows, left=3))
    out.print("[dim]vitreous lab exercise 1 hands one out, vitreous lab exercise 1 --check checks it.[/dim]")


def give(found: Exercise, folder: Path) -> None:
    there = (folder / found.file.name).exists()
    path = hand_out(found.number, folder)
    out.print(found.task, markup=False, soft_wrap=True)
    note = "Yours is there already, and stays as it is" if there else "Write your answer in"
    out.print(f"\n{note}: {path}", markup=False, soft_wrap=True)
    then = f"Then: {command(found, folder)} --check (--hint, if you are stuck)"
    out.print(then, style="dim", markup=False, soft_wrap=True)


def report(found: Exercise, folder: Path) -> None:
    """A line for every check, then what comes next; exit code 1 unless all pass."""
    path = folder / found.file.name
    results = run_checks(found.number, path)
    remember(found, path, results)
    out.print(f"[bold]{found.number}. {found.title}[/bold]  {escape(str(path))}", soft_wrap=True)
    for result in without_vague(results):
        print_result(result)
    passed = sum(result.state is State.PASSED for result in results)
    if passed < len(results):
        out.print(f"\n{passed} of {len(results)} checks pass.", style="yellow")
        raise SystemExit(1)
    print_next(found, folder)


def print_result(result: Result) -> None:
    note = f" [dim]{result.state}[/dim]" if result.state in (State.NOT_WRITTEN, State.WAITING) else ""
    out.print(f"{MARKS[result.state]} {result.title}{note}", soft_wrap=True)
    if result.message:
        out.print(f"    {result.message}", markup=False, style="red", soft_wrap=True)


def print_next(found: Exercise, folder: Path) -> None:
    out.print("\n[green]All checks pass.[/green] In the laboratory, this lets you understand:")
    for name in found.claims:
        out.print(f"  vitreous lab run {name}", markup=False)
    if found.next:
        out.print(f"Next: {command(found.next, folder)}  {found.next.title}", markup=False, soft_wrap=True)
    else:
        out.print("That was the last one: you have built a vision transformer.")


def command(found: Exercise, folder: Path) -> str:
    own = "" if folder == Path("exercises") else f" --folder {folder}"
    return f"vitreous lab exercise {found.number}{own}"
