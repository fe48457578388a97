"""What predict and embed share: finding images, showing progress, reporting what was skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitreous.cli.show import err
from vitreous.deploy.engine import Wanted
from vitreous.deploy.predictor import Predictor
from vitreous.files import digest, file_digest

T = TypeVar("T")
Weights = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS")]
Images = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES…")]


def make_predictor(
    weights: Path, model: str | None, *, engine: Wanted = "eager", top: int = 5, batch_size: int = 32
) -> Predictor:
    source = str(weights) if not weights.exists() else weights  # a name such as deit_tiny_16.in1k is fetched
    return Predictor(source, model=model, engine=engine, top=top, batch_size=batch_size)


def fingerprint(weights: Path) -> str:
    """Tell one file or folder of weights from another, so that a run does not go on with a different one."""
    if not weights.exists():
        return str(weights)
    if not weights.is_dir():
        return file_digest(weights)[:16]
    parts = sorted(path for ending in ("safetensors", "bin", "json") for path in weights.glob(f"*.{ending}"))
    return digest(" ".join(f"{path.name} {file_digest(path)}" for path in parts))[:16]


def with_progress(answers: Iterable[T], total: int, already: int = 0) -> Iterator[T]:
    """The answers as they come, with a bar on stderr where somebody is watching."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=total < 2 or not err.is_terminal) as bar:
        task = bar.add_task("images", total=total, completed=already)
        for answer in answers:
            yield answer
            bar.advance(task)


def report_skipped(skipped: dict[str, str], total: int, shown: int = 20) -> None:
    """On stderr, so that it never mixes with results; when nothing at all could be used, an error."""
    if not skipped:
        return
    err.print(f"[yellow]skipped {len(skipped)} of {total} files:[/yellow]")
    for name, reason in list(skipped.items())[:shown]:
        err.print(f"  {name}: {reason}", markup=False)
    if len(skipped) > shown:
        err.print(f"  … and {len(skipped) - shown} more")
    if len(skipped) == total:
        raise ValueError(f"none of the {total} files could be used" if total > 1 else "the file could not be used")
