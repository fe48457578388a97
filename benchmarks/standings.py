"""Format the results of ``benchmarks.inference``: an aligned table, a Markdown page and a bar chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HEADINGS = ("", "precision", "images/s", "× timm", "median (IQR)", "of limit", "error")
VITREOUS, OTHERS = "#0072B2", "#B0B0B0"

Comparison = Mapping[str, Any]


def title(comparison: Comparison) -> str:
    return f"{comparison['model']}, batch {comparison['batch']}"


def fastest_first(comparison: Comparison) -> list[Mapping[str, Any]]:
    return sorted(comparison["rows"], key=lambda row: -float(row["speed_up"]))


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = row["quartiles"]
    return (
        f"{row['name']} ({row['engine']})" if row["engine"] else row["name"],
        row["precision"],
        f"{row['images_per_second']:.1f}",
        f"{row['speed_up']:.2f}",
        f"{row['median']:.2f} ({low:.2f}–{high:.2f})",
        "–" if row["share"] is None else f"{row['share']:.0%}",
        "–" if row["error"] is None else f"{row['error']:.1e}" if row["error"] else "0",
    )


def limits_line(comparison: Comparison) -> str:
    rates = ", ".join(f"{precision} {rate / 1e9:,.0f}" for precision, rate in comparison["limits"].items())
    return f"limits in billions of operations per second: {rates}; {comparison['rounds']} rounds"


def table(comparison: Comparison) -> str:
    lines = [HEADINGS, *map(cells, fastest_first(comparison))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    body = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
    missing = [f"not run: {name}: {why}" for name, why in comparison["absent"].items()]
    return "\n".join(["", f"{title(comparison)}; {limits_line(comparison)}", *body, *missing])


def page(record: Mapping[str, Any]) -> str:
    """Return the content of ``docs/benchmarks/inference.md``."""
    lines = [
        "# Inference speed",
        "",
        f"Made by `{record['command']}` at commit {record['commit']}; {record['machine']}, torch {record['torch']}, "
        f"{record['threads']} threads, images of 224 pixels, random weights; the record is "
        "[bench.json](../images/bench.json).",
        "",
        "All implementations alternate in one process, round by round. *× timm* compares the best pass of each with "
        "that of timm's eager model; *median* is the median of the ratios within each round, with the interquartile "
        "range in parentheses. *Of limit* is the share of the operations per second that this CPU reached in the same "
        "precision (`python -m benchmarks.limit`). *Error* is the relative error ‖logits − reference‖ / ‖reference‖ "
        "against timm's model in float32 with the same weights. [Benchmarks](index.md#inference-in-brief) summarizes "
        "the results.",
        "",
        "![Speed of every implementation relative to timm's eager model](../images/bench.png)",
    ]
    for comparison in record["results"]:
        lines += ["", f"## {title(comparison)}", "", *markdown(comparison)]
    return "\n".join(lines) + "\n"


def markdown(comparison: Comparison) -> list[str]:
    rows = [f"| {' | '.join(line)} |" for line in (HEADINGS, *map(cells, fastest_first(comparison)))]
    missing = "; ".join(f"{name} ({why})" for name, why in comparison["absent"].items())
    below = f"L{limits_line(comparison)[1:]}." + f" Not run: {missing}." * bool(missing)
    return [rows[0], "|---|---|" + "---:|" * (len(HEADINGS) - 2), *rows[1:], "", below]


def draw(comparisons: Sequence[Comparison]) -> Figure:
    """Draw a panel per model (rows) and batch size (columns)."""
    batches = sorted({comparison["batch"] for comparison in comparisons})
    models = list(dict.fromkeys(comparison["model"] for comparison in comparisons))
    tallest = max(len(comparison["rows"]) for comparison in comparisons)
    size = 6.5 * len(batches), 0.9 + len(models) * (0.7 + 0.24 * tallest)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(models), len(batches), squeeze=False)
    for comparison in comparisons:
        draw_bars(grid[models.index(comparison["model"]), batches.index(comparison["batch"])], comparison)
    figure.suptitle(
        "Speed-up over timm's eager model (Vitreous in blue)\nbars: best passes; lines: interquartile range"
    )
    return figure


def draw_bars(axes: Axes, comparison: Comparison) -> None:
    rows = fastest_first(comparison)
    positions = range(len(rows))
    colors = [VITREOUS if row["name"].startswith("vitreous") else OTHERS for row in rows]
    axes.barh(positions, [row["speed_up"] for row in rows], color=colors, height=0.7)
    axes.hlines(positions, *zip(*(row["quartiles"] for row in rows), strict=True), color="black", linewidth=1.2)
    axes.axvline(1, color="black", linewidth=0.6, linestyle=":")
    for position, row in zip(positions, rows, strict=True):
        end = max(row["speed_up"], *row["quartiles"])
        text = f"{row['speed_up']:.2f}  {row['precision']}"
        axes.annotate(text, (end, position), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(positions, [row["name"] for row in rows], fontsize=8.5)
    axes.invert_yaxis()
    axes.margins(x=0.15, y=0.02)
    axes.set_title(title(comparison), fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
