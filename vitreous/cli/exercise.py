"""vitreous lab exercise"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape
from rich.text import Text

from vitreous.cli.display import out, print_fitting, table
from vitreous.lab.exercise import check_exercise as run_checks
from vitreous.lab.exercise import describe_progress, hand_out, save_progress
from vitreous.lab.exercises.result import Result, State, without_vague
from vitreous.lab.exercises.table import EXERCISES, Exercise, find_exercise

Number = Annotated[
    str, tyro.conf.Positional, tyro.conf.arg(metavar="[NUMBER]", help_behavior_hint="(default: list all)")
]
MARKS = {
    State.PASSED: "[green]✓[/green]",
    State.FAILED: "[red]✗[/red]",
    State.NOT_WRITTEN: "[yellow]…[/yellow]",
    State.WAITING: "[dim]·[/dim]",
}
STYLES = {"done": "green", "": "dim"}


def exercise(number: Number = "", check: bool = False, hint: bool = False, folder: Path = Path("exercises")) -> None:
    """Implement a vision transformer in ten exercises: each a file to complete, with automatic checks and hints.

    Without NUMBER: list the exercises and your progress.

    Args:
        number: Exercise to start, 1 to 10 or its name. An existing file is never overwritten.
        check: Check your solution.
        hint: Print a hint of a sentence or two.
        folder: Folder for your files.
    """
    if not number:
        if check or hint:
            raise ValueError("give the number of an exercise, as in: vitreous lab exercise 1 --check")
        print_all(folder)
        return
    found = find_exercise(number)
    if hint:
        out.print(f"Hint: {found.hint}", markup=False)
    if check:
        report(found, folder)
    elif not hint:
        start(found, folder)


def print_all(folder: Path) -> None:
    """List the exercises with the learner's progress."""
    rows = []
    for one in EXERCISES:
        state = describe_progress(one, folder)
        style = STYLES.get(state, "yellow")
        rows.append((str(one.number), one.title, Text(state or "not started", style=style)))
    print_fitting(table("Exercises: build a vision transformer", ("", "exercise", "progress"), rows, left=3))
    out.print("[dim]vitreous lab exercise 1 starts one, vitreous lab exercise 1 --check checks it.[/dim]")


def start(found: Exercise, folder: Path) -> None:
    """Copy the exercise's file to the folder and print its task."""
    exists = (folder / found.file.name).exists()
    path = hand_out(found.number, folder)
    out.print(found.task, markup=False, soft_wrap=True)
    note = "Your file already exists and is left unchanged" if exists else "Write your solution in"
    out.print(f"\n{note}: {path}", markup=False, soft_wrap=True)
    then = f"Then: {command(found, folder)} --check (--hint if you are stuck)"
    out.print(then, style="dim", markup=False, soft_wrap=True)


def report(found: Exercise, folder: Path) -> None:
    """Print a line per check and the next step; exit with code 1 unless all checks pass."""
    path = folder / found.file.name
    results = run_checks(found.number, path)
    save_progress(found, path, results)
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
    out.print("\n[green]All checks pass.[/green] Related claims in the laboratory:")
    for name in found.claims:
        out.print(f"  vitreous lab run {name}", markup=False)
    if found.next:
        out.print(f"Next: {command(found.next, folder)}  {found.next.title}", markup=False, soft_wrap=True)
    else:
        out.print("That was the last exercise: you have built a vision transformer.")


def command(found: Exercise, folder: Path) -> str:
    own = "" if folder == Path("exercises") else f" --folder {folder}"
    return f"vitreous lab exercise {found.number}{own}"
