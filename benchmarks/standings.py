"""How the results of ``benchmarks.inference`` are shown: an aligned table, a page in Markdown, a figure of bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HEADINGS = ("", "precision", "images/s", "× timm", "median (middle half)", "of limit", "error")
OURS, THEIRS = "#0072B2", "#B0B0B0"

Race = Mapping[str, Any]


def title(race: Race) -> str:
    return f"{race['model']}, batch {race['batch']}"


def fastest_first(race: Race) -> list[Mapping[str, Any]]:
    return sorted(race["rows"], key=lambda row: -float(row["speed_up"]))


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


def limits_line(race: Race) -> str:
    rates = ", ".join(f"{precision} {rate / 1e9:,.0f}" for precision, rate in race["limits"].items())
    return f"limits in billions of operations a second: {rates}; {race['rounds']} rounds"


def table(race: Race) -> str:
    lines = [HEADINGS, *map(cells, fastest_first(race))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    body = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
    missing = [f"not run: {name}: {why}" for name, why in race["absent"].items()]
    return "\n".join(["", f"{title(race)}; {limits_line(race)}", *body, *missing])


def page(record: Mapping[str, Any]) -> str:
    """The whole of ``docs/bench.md``."""
    lines = [
        "# Side by side with other libraries",
        "",
        f"Made by `{record['command']}` at commit {record['commit']}; {record['machine']}, torch {record['torch']}, "
        f"{record['threads']} threads, images of 224 pixels, fresh weights; every number stands in "
        "[bench.json](images/bench.json).",
        "",
        "All take turns in one process, round by round. *× timm* compares the best pass of each with that of timm's "
        "eager model; the *median* is that of the ratios within each round, in brackets their middle half. *Of limit* "
        "is the share of the operations a second that this CPU reached in the same precision "
        "(`python -m benchmarks.limit`). *Error* is the distance of the logits from those of timm's model in float32 "
        "with the same weights, relative to their length.",
        "",
        "![Speed of every contestant as a multiple of timm's eager model](images/bench.png)",
    ]
    for race in record["results"]:
        lines += ["", f"## {title(race)}", "", *markdown(race)]
    return "\n".join(lines) + "\n"


def markdown(race: Race) -> list[str]:
    rows = [f"| {' | '.join(line)} |" for line in (HEADINGS, *map(cells, fastest_first(race)))]
    missing = "; ".join(f"{name} ({why})" for name, why in race["absent"].items())
    below = f"L{limits_line(race)[1:]}." + f" Not run: {missing}." * bool(missing)
    return [rows[0], "|---|---|" + "---:|" * (len(HEADINGS) - 2), *rows[1:], "", below]


def draw(races: Sequence[Race]) -> Figure:
    """A panel for each model (down) and batch size (across)."""
    batches = sorted({race["batch"] for race in races})
    models = list(dict.fromkeys(race["model"] for race in races))
    tallest = max(len(race["rows"]) for race in races)
    size = 6.5 * len(batches), 0.9 + len(models) * (0.7 + 0.24 * tallest)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(models), len(batches), squeeze=False)
    for race in races:
        draw_bars(grid[models.index(race["model"]), batches.index(race["batch"])], race)
    figure.suptitle(
        "Times faster than timm's eager model, ours in blue\nbars: best passes; lines: middle half of the rounds"
    )
    return figure


def draw_bars(axes: Axes, race: Race) -> None:
    rows = fastest_first(race)
    places = range(len(rows))
    colors = [OURS if row["name"].startswith("vitreous") else THEIRS for row in rows]
    axes.barh(places, [row["speed_up"] for row in rows], color=colors, height=0.7)
    axes.hlines(places, *zip(*(row["quartiles"] for row in rows), strict=True), color="black", linewidth=1.2)
    axes.axvline(1, color="black", linewidth=0.6, linestyle=":")
    for place, row in zip(places, rows, strict=True):
        end = max(row["speed_up"], *row["quartiles"])
        words = f"{row['speed_up']:.2f}  {row['precision']}"
        axes.annotate(words, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(places, [row["name"] for row in rows], fontsize=8.5)
    axes.invert_yaxis()
    axes.margins(x=0.15, y=0.02)
    axes.set_title(title(race), fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
