"""Datasets listed in a CSV file: a column of image paths, and labels in one or several columns.

A single label per image is in the column ``label``. Several are in the column ``labels`` ("cat;dog"), or in one
indicator column per label: 1, 0, or unknown (empty, −1 or nan). An optional column ``split`` holds train, val or test.
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

from vitreous.data.folder import PathDataset
from vitreous.data.labels import to_label_sets
from vitreous.data.splits import SPLIT_NAMES, Splits, first_few, require_two_classes
from vitreous.files import open_file
from vitreous.samples import Classes, MultiLabels

MAX_LINE_LENGTH = 2**20  # characters
MAX_INTERNED = 100_000  # distinct cells that are interned, so that equal cells share memory
MIN_ROWS_TO_LIST = 8  # from this many rows in one folder, it is listed rather than checked file by file
ENTRIES_PER_ROW = 20  # directory entries read at most for each row
MAX_DIGITS = 1000  # of a numeric class name
PATH_COLUMNS = ("path", "image", "file", "filename")
LABEL_VALUES = {"1": 1.0, "0": 0.0, "-1": np.nan, "": np.nan, "nan": np.nan}


@dataclass(frozen=True)
class LabelTable:
    """Cells by column, and the line number of each row for error messages."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def keep(self, rows: Sequence[int]) -> LabelTable:
        columns = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[row] for row in rows])

    def error(self, row: int, message: str) -> ValueError:
        return ValueError(f"{self.path}, line {self.lines[row]}: {message}")


@dataclass(frozen=True)
class Labeling:
    """Labels of all rows: class indices (n,), or multi-label targets as tuples (n,) or vectors (n, classes)."""

    values: NDArray[Any]
    classes: list[str]
    target: type[Classes]
    notes: tuple[str, ...] = ()


def open_table(path: Path) -> Splits:
    table = read_table(path)
    table, paths, notes = drop_missing(table)
    labeling = read_labels(table)
    files = PathDataset(paths, labeling.values, labeling.classes, target=labeling.target)
    rows = split_rows(table)
    if labeling.target is Classes:
        require_two_classes(labeling.classes, path)
        require_training_classes(path, labeling, rows)
    parts = {name: files.subset(own) for name, own in rows.items()}
    return Splits(parts["train"], parts.get("valid"), parts.get("test"), (*notes, *labeling.notes))


def read_table(path: Path) -> LabelTable:
    try:
        with open_file(path) as content, io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as file:
            first = file.readline(MAX_LINE_LENGTH)
            file.seek(0)
            reader = csv.reader(lines_of(path, file), delimiter=max(",;\t", key=first.count), strict=True)
            return read_columns(path, ((reader.line_num, row) for row in reader if any(map(str.strip, row))))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text{guess_encoding(path)}; save it as a CSV in UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not a valid CSV file ({error})") from None


def lines_of(path: Path, file: TextIO) -> Iterator[str]:
    """Yield the lines of a CSV file; refuse null bytes and lines too long for a table."""
    while line := file.readline(MAX_LINE_LENGTH):
        if len(line) == MAX_LINE_LENGTH:
            raise ValueError(f"{path} holds a line of more than {MAX_LINE_LENGTH:,} characters; it should list images")
        if "\0" in line:
            raise ValueError(f"{path} holds null bytes, so it is not UTF-8 text; save it as a CSV in UTF-8")
        yield line


def guess_encoding(path: Path) -> str:
    """Guess the encoding of a text that is not UTF-8; UTF-16 starts with a byte order mark."""
    with open_file(path) as file:
        start = file.read(2)
    return " but UTF-16" if start in (b"\xff\xfe", b"\xfe\xff") else ", perhaps in Windows-1252 or Latin-1"


def read_columns(path: Path, rows: Iterator[tuple[int, list[str]]]) -> LabelTable:
    """Collect rows by column; equal cells, as labels often are, are stored once."""
    _, header = next(rows, (0, []))
    header = [cell.strip() for cell in header]
    if repeated := sorted(name for name, times in Counter(header).items() if times > 1):
        raise ValueError(f"{path} has duplicate column names: {first_few(repeated)}")
    cells: list[list[str]] = [[] for _ in header]
    lines: list[int] = []
    known: dict[str, str] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: the header has {len(header)} cells, this line {len(row)}")
        lines.append(line)
        for column, cell in zip(cells, row, strict=True):
            text = cell.strip()
            column.append(known.setdefault(text, text) if len(known) < MAX_INTERNED else known.get(text, text))
    if not lines:
        raise ValueError(f"{path} {'has a header but no rows' if header else 'is empty'}; it should list images")
    return LabelTable(path, dict(zip(header, cells, strict=True)), lines)


def find_column(table: LabelTable, names: Sequence[str]) -> str | None:
    """Find the first of these column names in the table, ignoring case, and return the table's spelling."""
    own = {name.lower(): name for name in reversed(table.columns)}
    return next((own[name] for name in names if name in own), None)


def drop_missing(table: LabelTable) -> tuple[LabelTable, list[str], list[str]]:
    """Drop rows whose file does not exist; return the table, the paths, and a note about dropped rows."""
    name = find_column(table, PATH_COLUMNS)
    if name is None:
        raise ValueError(
            f"{table.path} has no path column: name it {', '.join(PATH_COLUMNS[:-1])} or {PATH_COLUMNS[-1]} "
            f"(its columns: {first_few(list(table.columns), 8)})"
        )
    cells = table.columns[name]
    folder = os.path.join(table.path.parent, "")
    paths = [os.path.join(folder, os.path.expanduser(cell)) if cell[:1] in "~/" else folder + cell for cell in cells]
    existing = existing_rows(paths)
    if not existing:
        raise ValueError(
            f"none of the {len(paths):,} files listed in {table.path} exists, e.g. {paths[0]}; "
            f"paths are relative to the CSV's folder"
        )
    if len(existing) == len(paths):
        return table, paths, []
    kept = set(existing)
    missing = [cell for row, cell in enumerate(cells) if row not in kept]
    notes = [f"{len(missing):,} of {len(paths):,} files are missing, their rows left out: {first_few(missing)}"]
    return table.keep(existing), [paths[row] for row in existing], notes


def existing_rows(paths: list[str]) -> list[int]:
    """Return the rows whose path is a file.

    A folder with many rows is listed once, and only files missing from that listing are checked one by one.
    """
    folders: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        folders[path[: path.rfind("/") + 1]].append(row)
    existing: list[int] = []
    for folder, rows in folders.items():
        listed = listed_files(folder, ENTRIES_PER_ROW * len(rows)) if len(rows) >= MIN_ROWS_TO_LIST else set()
        existing.extend(row for row in rows if paths[row][len(folder) :] in listed or os.path.isfile(paths[row]))
    return sorted(existing)


def listed_files(folder: str, max_entries: int) -> set[str]:
    """Return the names of files among the first ``max_entries`` directory entries."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in islice(entries, max_entries) if entry.is_file()}
    except (OSError, ValueError):
        return set()


def read_labels(table: LabelTable) -> Labeling:
    if name := find_column(table, ("label",)):
        return single_labels(table, name)
    if name := find_column(table, ("labels",)):
        return multiple_labels(table, name)
    return indicator_labels(table)


def single_labels(table: LabelTable, name: str) -> Labeling:
    cells = table.columns[name]
    if "" in cells:
        raise table.error(cells.index(""), "the label is empty; add one or remove the line")
    classes = sorted_classes(set(cells))
    class_index = {label: index for index, label in enumerate(classes)}
    return Labeling(np.array([class_index[cell] for cell in cells]), classes, Classes)


def multiple_labels(table: LabelTable, name: str) -> Labeling:
    lists = [[label.strip() for label in cell.split(";") if label.strip()] for cell in table.columns[name]]
    classes = sorted_classes({label for labels in lists for label in labels})
    if not classes:
        raise ValueError(f"{table.path}: the column {name} holds no labels")
    class_index = {label: index for index, label in enumerate(classes)}
    return Labeling(to_label_sets([[class_index[label] for label in labels] for labels in lists]), classes, MultiLabels)


def indicator_labels(table: LabelTable) -> Labeling:
    """Read one label per 0/1 column; other columns, such as an age, are not labels."""
    known = {find_column(table, PATH_COLUMNS), find_column(table, ("split",))}
    others = [name for name in table.columns if name not in known]
    classes = [name for name in others if is_indicator_column(table.columns[name])]
    if not classes:
        raise ValueError(
            f"{table.path} has no labels: expected a column label, a column labels with entries such as cat;dog, or "
            f"columns of 0 and 1 (its columns: {first_few(list(table.columns), 8)})"
        )
    values = np.array([label_values(table, name) for name in classes], dtype=np.float32).T
    chosen = set(classes)
    left_out = [name for name in others if name not in chosen]
    notes = (f"these columns are not labels: {first_few(left_out)}",) if left_out else ()
    return Labeling(values, classes, MultiLabels, notes)


def is_indicator_column(cells: list[str]) -> bool:
    """Return whether most non-empty cells are label values; any other cell is then an error."""
    known_cells = [normalized_cell(cell) for cell in cells if normalized_cell(cell) not in ("", "nan")]
    return bool(known_cells) and 2 * sum(cell in LABEL_VALUES for cell in known_cells) > len(known_cells)


def label_values(table: LabelTable, name: str) -> list[float]:
    cells = [normalized_cell(cell) for cell in table.columns[name]]
    for row, cell in enumerate(cells):
        if cell not in LABEL_VALUES:
            raise table.error(row, f"{cell!r} in column {name!r} is neither 1, 0 nor unknown (empty, -1, nan)")
    return [LABEL_VALUES[cell] for cell in cells]


def normalized_cell(cell: str) -> str:
    """Spell equal values alike: 1.0 as 1, NaN as nan."""
    return cell.lower().removesuffix(".0")


def sorted_classes(classes: set[str]) -> list[str]:
    """Sort classes by value if all are numbers, otherwise alphabetically."""
    numbers = all(name.isdecimal() and len(name) <= MAX_DIGITS for name in classes)
    return sorted(classes, key=int) if numbers else sorted(classes)


def split_rows(table: LabelTable) -> dict[str, NDArray[np.int64]]:
    name = find_column(table, ("split",))
    if name is None:
        return {"train": np.arange(len(table.lines))}
    cells = [cell.lower() for cell in table.columns[name]]
    for row, cell in enumerate(cells):
        if cell not in SPLIT_NAMES:
            raise table.error(row, f"{cell!r} is not a split; expected one of {', '.join(SPLIT_NAMES)}")
    splits = np.array([SPLIT_NAMES[cell] for cell in cells])
    if "train" not in splits:
        raise ValueError(f"{table.path}: no row of column {name!r} is train")
    return {str(split): np.flatnonzero(splits == split) for split in np.unique(splits)}


def require_training_classes(path: Path, labeling: Labeling, rows: dict[str, NDArray[np.int64]]) -> None:
    used = {split: set(labeling.values[own].tolist()) for split, own in rows.items()}
    for split, numbers in used.items():
        if unknown := sorted(numbers - used["train"]):
            names = first_few([labeling.classes[class_index] for class_index in unknown])
            raise ValueError(f"{path}: these classes of the {split} split are missing from train: {names}")
