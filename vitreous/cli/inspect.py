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

from vitreous.cli.sheet import MOST_PER_CLASS, contact_sheet
from vitreous.cli.show import err, out, table
from vitreous.data.inspect import Duplicate, Inspection, Look
from vitreous.data.inspect import inspect as inspect_splits
from vitreous.data.memory import unreadable
from vitreous.data.pack import need_empty, write_shards
from vitreous.data.sources import EMBEDDED, as_path, open_data
from vitreous.data.threads import Progress

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
Output = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
MANY = 40  # classes that are still listed one by one
SHOWN = 10  # files listed of each kind of trouble
FOLDERS = {"train": "train", "valid": "val", "test": "test"}


def inspect(
    source: Source, output: Path = Path("contact.png"), valid_share: float = 0.1, per_class: int = 8, seed: int = 0
) -> None:
    """Look at data before training on it: balance, sizes, broken and duplicate images, and a contact sheet.

    Args:
        source: A folder of class folders, a CSV file, CIFAR's folder, tar shards, or shapes or digits.
        output: The contact sheet to write.
        valid_share: Share of each class held out for validation, if there is no validation split.
        per_class: Images of each class on the contact sheet.
        seed: Another seed, other images held out.
    """
    if not 1 <= per_class <= MOST_PER_CLASS:
        raise ValueError(f"per_class must lie in [1, {MOST_PER_CLASS}], got {per_class}")
    if not output.parent.is_dir():
        raise ValueError(f"cannot write {output}: there is no folder {output.parent}")
    splits = open_data(source, valid_share=valid_share, seed=seed)
    with progress_bar("images") as progress:
        found = inspect_splits(splits, progress=progress)
    out.print(balance(found))
    print_balance_notes(found)
    out.print(sizes(found))
    print_odd(found)
    print_broken(found)
    print_duplicates(found)
    for note in splits.notes:
        out.print(f"Note: {note}", markup=False, soft_wrap=True)
    with plain_errors(f"cannot write {output}"):
        drawn = contact_sheet(splits.train, output, per_class=per_class)
    out.print(f"Contact sheet of {drawn} of {len(found.classes)} classes: {output}", markup=False, soft_wrap=True)


def pack(source: Source, output: Output, shard_size: int = 10_000) -> None:
    """Pack data into tar shards, which are read from disk in any order: for sets larger than memory.

    Args:
        source: A folder of class folders, a CSV file, CIFAR's folder, tar shards, or shapes or digits.
        output: The folder to write; where the data has several splits, train, val and test below it.
        shard_size: Images in each tar file.
    """
    need_outside(source, output)
    need_empty(output)
    splits = open_data(source, valid_share=0)
    parts = splits.parts()
    for name, dataset in parts.items():
        folder = output if len(parts) == 1 else output / FOLDERS[name]
        with progress_bar(name) as progress, plain_errors(f"cannot pack into {folder}"):
            broken = write_shards(dataset, folder, shard_size=shard_size, progress=progress)
        packed, files = len(dataset) - len(broken), -(-len(dataset) // shard_size)
        out.print(f"{packed:,} images in {files:,} tar files: {folder}", markup=False)
        if broken:
            out.print(f"Left out: {unreadable(broken, len(dataset))}", markup=False, soft_wrap=True)
    for note in splits.notes:
        out.print(f"Note: {note}", markup=False, soft_wrap=True)


def need_outside(source: str, output: Path) -> None:
    """Refuse to pack a folder into itself."""
    inside, below = as_path(source).resolve(), output.resolve()
    if source not in EMBEDDED and below.is_relative_to(inside):
        raise ValueError(f"{output} lies in {source}, the data that is packed; give a folder outside of it")


@contextmanager
def plain_errors(problem: str) -> Iterator[None]:
    """A disk that is full or a folder that is read-only is no traceback."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{problem}: {error.strerror or error}") from None


@contextmanager
def progress_bar(name: str) -> Iterator[Progress]:
    """A bar on stderr where somebody is watching."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(name)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def balance(found: Inspection) -> Table:
    """Images of each class; of many classes the largest and the smallest."""
    counts = found.counts["train"]
    chosen = list(range(len(counts)))
    if len(counts) > MANY:
        order = np.argsort(-counts, kind="stable").tolist()
        chosen = [*order[: MANY // 2], *order[-MANY // 2 :]]
    largest = max(1, int(counts.max()))
    rows: list[Sequence[str | Text]] = [
        (
            Text(found.classes[number]),
            Text("█" * round(20 * counts[number] / largest), style="green"),
            *(f"{own[number]:,}" for own in found.counts.values()),
        )
        for number in chosen
    ]
    rows.append((Text("all", style="bold"), Text(), *(f"{number:,}" for number in found.totals.values())))
    shown = f", {MANY} shown" if len(counts) > MANY else ""
    return table(f"Images of {len(counts)} classes{shown}", ("class", "", *found.counts), rows, left=2)


def print_balance_notes(found: Inspection) -> None:
    for split, counts in found.counts.items():
        if absent := [found.classes[number] for number in np.flatnonzero(counts == 0)]:
            names = ", ".join(absent[:SHOWN]) + (" …" if len(absent) > SHOWN else "")
            out.print(f"Without any image in {split}: {names}\n", markup=False)
    if found.imbalance >= 10:
        out.print(f"The largest class has {found.imbalance:,.0f} times as many images as the smallest.\n")


def sizes(found: Inspection) -> Table:
    sides = (("height", found.heights), ("width", found.widths))
    rows = [(side, *(f"{value:,}" for value in values)) for side, values in sides]
    return table("Sizes in pixels", ("", "smallest", "median", "largest"), rows)


def print_odd(found: Inspection) -> None:
    for words, looks in (("Unusually long", found.long), ("Unusually small", found.tiny)):
        if looks:
            out.print(f"{words} (height × width):")
            print_some([f"{look.size[0]}×{look.size[1]}  {look.where}" for look in looks])


def print_broken(found: Inspection) -> None:
    total = sum(found.totals.values())
    if not found.broken:
        out.print(f"All {total:,} images can be read.\n")
        return
    out.print(f"[yellow]{len(found.broken):,} of {total:,} images cannot be read:[/yellow]")
    print_some([f"{look.where}: {look.broken}" for look in found.broken])


def print_duplicates(found: Inspection) -> None:
    """The worst kind first: what is validated on must not be trained on."""
    if not found.duplicates:
        out.print("No image is there twice.\n")
        return
    between = sum(one.between_splits for one in found.duplicates)
    contradictory = sum(one.contradictory for one in found.duplicates)
    out.print(
        f"[yellow]Images that are there more than once: {len(found.duplicates):,}[/yellow] "
        f"(in several splits: {between:,}, with different labels: {contradictory:,})",
        soft_wrap=True,
    )
    print_some([described(one) for one in found.duplicates])


def described(one: Duplicate) -> str:
    names = [f"{name(look)} ({label})" for look, label in zip(one.looks, one.labels, strict=True)]
    more = [f"{len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return " = ".join(names[:SHOWN] + more)


def name(look: Look) -> str:
    return f"{look.split} {look.where}"


def print_some(lines: list[str]) -> None:
    for line in lines[:SHOWN]:
        out.print(f"  {line}", markup=False, soft_wrap=True)
    out.print(f"  … and {len(lines) - SHOWN:,} more\n" if len(lines) > SHOWN else "")
