"""Terminal output: tables, numbers with units, and the consoles for stdout and stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1) -> Table:
    """Build a table with the first ``left`` columns left-aligned and the others right-aligned.

    Strings are shown literally; pass ``Text`` for styled cells.
    """
    rows = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    result = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        width = longest(row[index] for row in rows) if index == 0 else None
        result.add_column(column, justify="left" if index < left else "right", no_wrap=True, min_width=width)
    for row in rows:
        result.add_row(*row)
    return result


def print_fitting(*tables: Table) -> None:
    """Print the first table that fits the terminal, else the last; to a file or pipe, the first in full width."""
    widths = [Console(width=1000).measure(table).maximum for table in tables]
    if not out.is_terminal:
        Console(highlight=False, width=widths[0], file=out.file).print(tables[0])
        return
    fits = next((table for table, width in zip(tables, widths, strict=True) if width <= out.width), tables[-1])
    out.print(fits)


def count(number: float) -> str:
    """Format a count with a decimal prefix: 1,234 · 12.3 k · 86.6 M · 1.01 G."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{significant(number / (limit if unit != 'k' else 1e3))} {unit}"
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Format a number of bytes in decimal units (1 kB is 1000 bytes)."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= limit:
            return f"{significant(number / limit)} {unit}"
    return f"{number:.0f} B"


def duration(seconds: float) -> str:
    """Format a duration in the largest suitable unit, seconds to years."""
    for limit, unit in ((365.25 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * limit:
            return f"{significant(seconds / limit)} {unit}"
    return f"{significant(seconds)} seconds"


def significant(number: float) -> str:
    """Format with three significant digits."""
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def longest(texts: Iterable[str | Text]) -> int:
    return max(map(len, texts), default=0)


def shortened(name: str, width: int = 30) -> str:
    """Return the file's name; abbreviate a long one in the middle."""
    return abbreviated(Path(name).name, width)


def abbreviated(text: str, width: int) -> str:
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - half]}…{text[-half:]}"
