"""Shared by predict, embed and explain: loading a model, progress bars and the report of skipped files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitreous.cli.display import err
from vitreous.deploy.engine import EngineMode
from vitreous.deploy.predictor import Predictor
from vitreous.files import digest, file_digest

T = TypeVar("T")
EngineChoice = Annotated[
    EngineMode,
    tyro.conf.arg(help="Run the model unchanged (eager), or the fastest way vt.accelerate finds on this CPU (auto)."),
]


def make_predictor(
    weights: Path, model: str | None, *, engine: EngineMode = "eager", top: int = 5, batch_size: int = 32
) -> Predictor:
    """Load a predictor from a file, a folder or a published name."""
    source = (
        str(weights) if not weights.exists() else weights
    )  # a published name such as deit_tiny_16.in1k is downloaded
    return Predictor(source, model=model, engine=engine, top=top, batch_size=batch_size)


def fingerprint(weights: Path) -> str:
    """Return a digest of a weights file or folder, so that a run cannot be resumed with other weights."""
    if not weights.exists():
        return str(weights)
    if not weights.is_dir():
        return file_digest(weights)[:16]
    parts = sorted(path for ending in ("safetensors", "bin", "json") for path in weights.glob(f"*.{ending}"))
    return digest(" ".join(f"{path.name} {file_digest(path)}" for path in parts))[:16]


def with_progress(results: Iterable[T], total: int, completed: int = 0) -> Iterator[T]:
    """Yield the results, with a progress bar if stderr is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=total < 2 or not err.is_terminal) as bar:
        task = bar.add_task("images", total=total, completed=completed)
        for result in results:
            yield result
            bar.advance(task)


def report_skipped(skipped: dict[str, str], total: int, shown: int = 20) -> None:
    """List skipped files on stderr; raise a ValueError if every file was skipped."""
    if not skipped:
        return
    err.print(f"[yellow]skipped {len(skipped)} of {total} files:[/yellow]")
    for name, reason in list(skipped.items())[:shown]:
        err.print(f"  {name}: {reason}", markup=False)
    if len(skipped) > shown:
        err.print(f"  … and {len(skipped) - shown} more")
    if len(skipped) == total:
        raise ValueError(f"none of the {total} files could be read" if total > 1 else "the file could not be read")
