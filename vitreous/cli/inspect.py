"""vitreous data inspect, vitreous data pack"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from vitreous.cli.arguments import Source
from vitreous.cli.contact_sheet import MOST_PER_CLASS, contact_sheet
from vitreous.cli.display import err, out, table
from vitreous.data.inspect import Duplicate, ImageRecord, Inspection
from vitreous.data.inspect import inspect as inspect_splits
from vitreous.data.memory import unreadable_message
from vitreous.data.pack import require_empty, write_shards
from vitreous.data.sources import EMBEDDED, as_path, open_data
from vitreous.data.threads import Progress

Output = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
MAX_CLASSES = 40  # listed in the balance table
MAX_FILES = 10  # listed per kind of problem
FOLDERS = {"train": "train", "valid": "val", "test": "test"}


def inspect(
    source: Source, output: Path = Path("contact.png"), valid_share: float = 0.1, per_class: int = 8, seed: int = 0
) -> None:
    """Inspect a dataset before training: class balance, image sizes, broken and duplicate images, a contact sheet.

    Args:
        output: Contact sheet to write.
        valid_share: Fraction of each class held out for validation, if the data have no validation split.
        per_class: Images per class on the contact sheet.
        seed: Random seed of the held-out images.
    """
    if not 1 <= per_class <= MOST_PER_CLASS:
        raise ValueError(f"per_class must lie in [1, {MOST_PER_CLASS}], got {per_class}")
    if not output.parent.is_dir():
        raise ValueError(f"cannot write {output}: there is no folder {output.parent}")
    splits = open_data(source, valid_share=valid_share, seed=seed)
    with progress_bar("images") as progress:
        found = inspect_splits(splits, progress=progress)
    out.print(balance_table(found))
    print_balance_notes(found)
    out.print(size_table(found))
    print_odd(found)
    print_broken(found)
    print_duplicates(found)
    for note in splits.notes:
        out.print(f"Note: {note}", markup=False, soft_wrap=True)
    with os_errors(f"cannot write {output}"):
        drawn = contact_sheet(splits.train, output, per_class=per_class)
    out.print(f"Contact sheet of {drawn} of {len(found.classes)} classes: {output}", markup=False, soft_wrap=True)


def pack(source: Source, output: Output, shard_size: int = 10_000) -> None:
    """Pack data into tar shards, which are read from disk in any order: for sets larger than memory.

    Args:
        output: Folder to write. If the data have several splits, it gets subfolders train, val and test.
        shard_size: Images per tar file.
    """
    need_outside(source, output)
    require_empty(output)
    splits = open_data(source, valid_share=0)
    parts = splits.parts()
    for name, dataset in parts.items():
        folder = output if len(parts) == 1 else output / FOLDERS[name]
        with progress_bar(name) as progress, os_errors(f"cannot pack into {folder}"):
            broken = write_shards(dataset, folder, shard_size=shard_size, progress=progress)
        packed, files = len(dataset) - len(broken), -(-len(dataset) // shard_size)
        out.print(f"{packed:,} images in {files:,} tar files: {folder}", markup=False)
        if broken:
            out.print(f"Skipped: {unreadable_message(broken, len(dataset))}", markup=False, soft_wrap=True)
    for note in splits.notes:
        out.print(f"Note: {note}", markup=False, soft_wrap=True)


def need_outside(source: str, output: Path) -> None:
    """Raise a ValueError if the output lies inside the source."""
    folder = as_path(source).resolve()
    if source not in EMBEDDED and output.resolve().is_relative_to(folder):
        raise ValueError(f"the output {output} lies inside the source {source}; choose a folder outside it")


@contextmanager
def os_errors(problem: str) -> Iterator[None]:
    """Convert an OSError, such as a full disk, to a ValueError that starts with ``problem``."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{problem}: {error.strerror or error}") from None


@contextmanager
def progress_bar(name: str) -> Iterator[Progress]:
    """Show a progress bar if stderr is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(name)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def balance_table(found: Inspection) -> Table:
    """Tabulate images per class; for many classes only the largest and the smallest."""
    counts = found.counts["train"]
    chosen = list(range(len(counts)))
    if len(counts) > MAX_CLASSES:
        order = np.argsort(-counts, kind="stable").tolist()
        chosen = [*order[: MAX_CLASSES // 2], *order[-MAX_CLASSES // 2 :]]
    largest = max(1, int(counts.max()))
    rows: list[Sequence[str | Text]] = [
        (
            Text(found.classes[number]),
            Text("█" * round(20 * counts[number] / largest), style="green"),
            *(f"{own[number]:,}" for own in found.counts.values()),
        )
        for number in chosen
    ]
    rows.append((Text("total", style="bold"), Text(), *(f"{number:,}" for number in found.totals.values())))
    shown = f", {MAX_CLASSES} shown" if len(counts) > MAX_CLASSES else ""
    return table(f"Images per class ({len(counts)} classes{shown})", ("class", "", *found.counts), rows, left=2)


def print_balance_notes(found: Inspection) -> None:
    """Print empty classes and the imbalance ratio if it is 10 or more."""
    for split, counts in found.counts.items():
        if absent := [found.classes[number] for number in np.flatnonzero(counts == 0)]:
            names = ", ".join(absent[:MAX_FILES]) + (" …" if len(absent) > MAX_FILES else "")
            out.print(f"Classes without images in {split}: {names}\n", markup=False)
    if found.imbalance >= 10:
        out.print(
            f"Class imbalance: the largest class has {found.imbalance:,.0f} times as many images as the smallest.\n"
        )


def size_table(found: Inspection) -> Table:
    sides = (("height", found.heights), ("width", found.widths))
    rows = [(side, *(f"{value:,}" for value in values)) for side, values in sides]
    return table("Image size in pixels", ("", "smallest", "median", "largest"), rows)


def print_odd(found: Inspection) -> None:
    """List images of unusual size or aspect ratio."""
    for label, records in (("Extreme aspect ratio", found.elongated), ("Very small images", found.undersized)):
        if records:
            out.print(f"{label} (height × width):")
            print_some([f"{record.size[0]}×{record.size[1]}  {record.location}" for record in records])


def print_broken(found: Inspection) -> None:
    """List unreadable images with the reason."""
    total = sum(found.totals.values())
    if not found.broken:
        out.print(f"All {total:,} images are readable.\n")
        return
    out.print(f"[yellow]{len(found.broken):,} of {total:,} images are unreadable:[/yellow]")
    print_some([f"{record.location}: {record.broken}" for record in found.broken])


def print_duplicates(found: Inspection) -> None:
    """List duplicates, those between splits first: they leak validation images into training."""
    if not found.duplicates:
        out.print("No duplicate images.\n")
        return
    between = sum(one.between_splits for one in found.duplicates)
    contradictory = sum(one.contradictory for one in found.duplicates)
    out.print(
        f"[yellow]Duplicate images: {len(found.duplicates):,}[/yellow] "
        f"(across splits: {between:,}, with conflicting labels: {contradictory:,})",
        soft_wrap=True,
    )
    print_some([format_duplicate(one) for one in found.duplicates])


def format_duplicate(one: Duplicate) -> str:
    """Format the copies of an image with their labels."""
    names = [f"{name(record)} ({label})" for record, label in zip(one.records, one.labels, strict=True)]
    more = [f"{len(names) - MAX_FILES:,} more"] if len(names) > MAX_FILES else []
    return " = ".join(names[:MAX_FILES] + more)


def name(record: ImageRecord) -> str:
    return f"{record.split} {record.location}"


def print_some(lines: list[str]) -> None:
    """Print the first lines and the number of those omitted."""
    for line in lines[:MAX_FILES]:
        out.print(f"  {line}", markup=False, soft_wrap=True)
    out.print(f"  … and {len(lines) - MAX_FILES:,} more\n" if len(lines) > MAX_FILES else "")
