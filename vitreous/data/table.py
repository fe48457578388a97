"""Images listed in a CSV file: a column of paths, and labels in one column or in several.

One label an image stands in ``label``. Several stand in ``labels`` ("cat;dog"), or in a column for each that says 1,
0, or nothing, −1 or nan where nobody knows. A column ``split`` may say train, val or test.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from vitreous.data.folder import Files
from vitreous.data.labels import sets_of
from vitreous.data.splits import SPLIT_NAMES, Splits, need_two_classes, some
from vitreous.files import open_file
from vitreous.samples import Classes, MultiLabels

LONGEST_LINE = 2**20  # characters
MOST_KNOWN = 100_000  # different cells that are remembered, so that equal ones share their memory
FEW, LISTED = 8, 20  # rows of one folder that are worth a look at its list, and entries read of it for each of them
DIGITS = 1000  # of a class that is called by a number
PATH_COLUMNS = ("path", "image", "file", "filename")
ANSWERS = {"1": 1.0, "0": 0.0, "-1": np.nan, "": np.nan, "nan": np.nan}


@dataclass(frozen=True)
class Table:
    """Cells by column, and the line of each row, to speak of it."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def keep(self, rows: Sequence[int]) -> Table:
        columns = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[row] for row in rows])

    def error(self, row: int, message: str) -> ValueError:
        return ValueError(f"{self.path}, line {self.lines[row]}: {message}")


@dataclass(frozen=True)
class Labeling:
    """What a table says of its rows: class numbers (n,), or several labels as sets or as rows (n, classes)."""

    values: NDArray[Any]
    classes: list[str]
    target: type[Classes]
    notes: tuple[str, ...] = ()


def open_table(path: Path) -> Splits:
    table = read_table(path)
    table, paths, notes = drop_missing(table)
    labeling = read_labels(table)
    files = Files(paths, labeling.values, labeling.classes, target=labeling.target)
    rows = rows_of_splits(table)
    if labeling.target is Classes:
        need_two_classes(labeling.classes, path)
        need_classes_in_training(path, labeling, rows)
    parts = {name: files.subset(own) for name, own in rows.items()}
    return Splits(parts["train"], parts.get("valid"), parts.get("test"), (*notes, *labeling.notes))


def read_table(path: Path) -> Table:
    try:
        with open_file(path) as content, io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as file:
            first = file.readline(LONGEST_LINE)
            file.seek(0)
            reader = csv.reader(lines_of(path, file), delimiter=max(",;\t", key=first.count), strict=True)
            return collected(path, ((reader.line_num, row) for row in reader if any(map(str.strip, row))))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8{guess_encoding(path)}; save it as a CSV in UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path} is no valid CSV ({error})") from None


def lines_of(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a table, none so long that it is no table."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{path} holds a line of more than {LONGEST_LINE:,} characters; it should list images")
        if "\0" in line:
            raise ValueError(f"{path} holds null bytes, as no text in UTF-8 does; save it as a CSV in UTF-8")
        yield line


def guess_encoding(path: Path) -> str:
    """What a text may be that is not in UTF-8: UTF-16 says so in its first bytes."""
    with open_file(path) as file:
        start = file.read(2)
    return " but UTF-16" if start in (b"\xff\xfe", b"\xfe\xff") else ", perhaps in Windows-1252 or Latin-1"


def collected(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Table:
    """The rows by column; cells that say the same, as labels do, are kept once."""
    _, header = next(rows, (0, []))
    header = [cell.strip() for cell in header]
    if repeated := sorted(name for name, times in Counter(header).items() if times > 1):
        raise ValueError(f"{path} has several columns of one name: {some(repeated)}")
    cells: list[list[str]] = [[] for _ in header]
    lines: list[int] = []
    known: dict[str, str] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: the header has {len(header)} cells, this line {len(row)}")
        lines.append(line)
        for column, cell in zip(cells, row, strict=True):
            text = cell.strip()
            column.append(known.setdefault(text, text) if len(known) < MOST_KNOWN else known.get(text, text))
    if not lines:
        raise ValueError(f"{path} {'has a header but no rows' if header else 'is empty'}; it should list images")
    return Table(path, dict(zip(header, cells, strict=True)), lines)


def column(table: Table, names: Sequence[str]) -> str | None:
    """The table's own spelling of the first of these names that it has."""
    own = {name.lower(): name for name in reversed(table.columns)}
    return next((own[name] for name in names if name in own), None)


def drop_missing(table: Table) -> tuple[Table, list[str], list[str]]:
    """Only the rows whose file exists, their paths, and a note about the others."""
    name = column(table, PATH_COLUMNS)
    if name is None:
        raise ValueError(
            f"{table.path} has no column of paths: call it {', '.join(PATH_COLUMNS[:-1])} or {PATH_COLUMNS[-1]} "
            f"(its columns: {some(list(table.columns), 8)})"
        )
    cells = table.columns[name]
    folder = os.path.join(table.path.parent, "")
    paths = [os.path.join(folder, os.path.expanduser(cell)) if cell[:1] in "~/" else folder + cell for cell in cells]
    there = which_exist(paths)
    if not there:
        raise ValueError(
            f"none of the {len(paths):,} files that {table.path} lists exists, such as {paths[0]}; "
            f"paths are taken from the CSV's own folder"
        )
    if len(there) == len(paths):
        return table, paths, []
    kept = set(there)
    missing = [cell for row, cell in enumerate(cells) if row not in kept]
    notes = [f"{len(missing):,} of {len(paths):,} files are missing, their rows left out: {some(missing)}"]
    return table.keep(there), [paths[row] for row in there], notes


def which_exist(paths: list[str]) -> list[int]:
    """Rows whose path is a file. A folder of many is listed once; only what its list lacks is asked for by name."""
    folders: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        folders[path[: path.rfind("/") + 1]].append(row)
    there: list[int] = []
    for folder, rows in folders.items():
        listed = listing(folder, LISTED * len(rows)) if len(rows) >= FEW else set()
        there.extend(row for row in rows if paths[row][len(folder) :] in listed or os.path.isfile(paths[row]))
    return sorted(there)


def listing(folder: str, most: int) -> set[str]:
    """Names of files in a folder, as far as ``most`` entries tell them."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in islice(entries, most) if entry.is_file()}
    except (OSError, ValueError):
        return set()


def read_labels(table: Table) -> Labeling:
    if name := column(table, ("label",)):
        return one_label(table, name)
    if name := column(table, ("labels",)):
        return listed_labels(table, name)
    return label_columns(table)


def one_label(table: Table, name: str) -> Labeling:
    cells = table.columns[name]
    if "" in cells:
        raise table.error(cells.index(""), "there is no label; give one, or remove the line")
    classes = in_order(set(cells))
    number = {label: index for index, label in enumerate(classes)}
    return Labeling(np.array([number[cell] for cell in cells]), classes, Classes)


def listed_labels(table: Table, name: str) -> Labeling:
    lists = [[label.strip() for label in cell.split(";") if label.strip()] for cell in table.columns[name]]
    classes = in_order({label for labels in lists for label in labels})
    if not classes:
        raise ValueError(f"{table.path}: the column {name} holds no label at all")
    number = {label: index for index, label in enumerate(classes)}
    return Labeling(sets_of([[number[label] for label in labels] for labels in lists]), classes, MultiLabels)


def label_columns(table: Table) -> Labeling:
    """The columns that answer yes or no; others, such as an age, are no labels."""
    known = {column(table, PATH_COLUMNS), column(table, ("split",))}
    others = [name for name in table.columns if name not in known]
    classes = [name for name in others if is_label_column(table.columns[name])]
    if not classes:
        raise ValueError(
            f"{table.path} has no labels: expected a column label, or labels with several as in cat;dog, or columns "
            f"of 0 and 1 (its columns: {some(list(table.columns), 8)})"
        )
    values = np.array([answers(table, name) for name in classes], dtype=np.float32).T
    chosen = set(classes)
    left_out = [name for name in others if name not in chosen]
    notes = (f"these columns are no labels: {some(left_out)}",) if left_out else ()
    return Labeling(values, classes, MultiLabels, notes)


def is_label_column(cells: list[str]) -> bool:
    """Most of what it says is yes or no; then anything else in it is a mistake."""
    said = [normal(cell) for cell in cells if normal(cell) not in ("", "nan")]
    return bool(said) and 2 * sum(cell in ANSWERS for cell in said) > len(said)


def answers(table: Table, name: str) -> list[float]:
    cells = [normal(cell) for cell in table.columns[name]]
    for row, cell in enumerate(cells):
        if cell not in ANSWERS:
            raise table.error(row, f"{cell!r} under {name!r} is neither 1 nor 0, nor unknown (nothing, -1, nan)")
    return [ANSWERS[cell] for cell in cells]


def normal(cell: str) -> str:
    """1.0 is 1 and NaN is nan."""
    return cell.lower().removesuffix(".0")


def in_order(classes: set[str]) -> list[str]:
    """Numbers by value, words by letter."""
    numbers = all(name.isdecimal() and len(name) <= DIGITS for name in classes)
    return sorted(classes, key=int) if numbers else sorted(classes)


def rows_of_splits(table: Table) -> dict[str, NDArray[np.int64]]:
    name = column(table, ("split",))
    if name is None:
        return {"train": np.arange(len(table.lines))}
    cells = [cell.lower() for cell in table.columns[name]]
    for row, cell in enumerate(cells):
        if cell not in SPLIT_NAMES:
            raise table.error(row, f"{cell!r} is no split; it is one of {', '.join(SPLIT_NAMES)}")
    splits = np.array([SPLIT_NAMES[cell] for cell in cells])
    if "train" not in splits:
        raise ValueError(f"{table.path}: no row of its column {name!r} says train")
    return {str(split): np.flatnonzero(splits == split) for split in np.unique(splits)}


def need_classes_in_training(path: Path, labeling: Labeling, rows: dict[str, NDArray[np.int64]]) -> None:
    used = {split: set(labeling.values[own].tolist()) for split, own in rows.items()}
    for split, numbers in used.items():
        if unknown := sorted(numbers - used["train"]):
            names = some([labeling.classes[number] for number in unknown])
            raise ValueError(f"{path}: these classes of the {split} split are not in train: {names}")
