"""Draw the map of families from the models: docs/concepts/map.md, docs/images/map.png and docs/images/accuracy.png.

    python -m benchmarks.family_map

Every diagram comes from ``vitreous.anatomy``, so that it follows the code.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from numpy.typing import NDArray

import vitreous as vt
from vitreous.anatomy import Anatomy, ModelPart, anatomy
from vitreous.catalog import entry
from vitreous.cli.display import count
from vitreous.cli.models import blocks, shape
from vitreous.models import FAMILIES
from vitreous.weights.accuracy import PUBLISHED_ACCURACY, Accuracy

DOCS = Path(__file__).parents[1] / "docs"

#: What the records at the end of the model files want drawn, about the size of a ResNet-50 where there is such a one.
ROWS = tuple(name for family in FAMILIES.values() for name in family.plotted)


class Kind(NamedTuple):
    """What a token looks at, in an image of 8×8 cells; 2 marks the token itself."""

    name: str
    color: str
    titles: tuple[str, ...]  # of mixers and blocks, as in vitreous.anatomy
    icon: NDArray[np.int64]


def seen(*boxes: tuple[int, int, int, int]) -> NDArray[np.int64]:
    """Cells within boxes (top, left, bottom, right), and the token at (3, 4)."""
    icon = np.zeros((8, 8), int)
    for top, left, bottom, right in boxes:
        icon[top:bottom, left:right] = 1
    icon[3, 4] = 2
    return icon


EVERY_SECOND = [(y, x, y + 1, x + 1) for y in range(0, 8, 2) for x in range(0, 8, 2)]
POINTS = [(y, x, y + 1, x + 1) for y, x in ((0, 1), (1, 5), (2, 3), (3, 6), (4, 2), (5, 5), (6, 1), (6, 6))]

KINDS = (
    Kind(
        "attention to every token", "#0072B2",
        ("self attention", "cross attention", "widening attention", "wide value attention"), seen((0, 0, 8, 8)),
    ),
    Kind("attention to fewer keys, one for several cells", "#56B4E9",
         ("reduced attention", "conv projected attention"), seen(*EVERY_SECOND)),
    Kind("attention in a window", "#D55E00", ("window attention",), seen((0, 4, 4, 8))),
    Kind("attention in a shifted window", "#E69F00",
         ("shifted window attention", "shifted window"), seen((2, 2, 6, 6))),
    Kind("attention to points that move", "#CC79A7", ("deformable attention",), seen(*POINTS)),
    Kind("attention between channels", "#882255", ("cross covariance",), seen((0, 0, 8, 8))),
    Kind("convolution", "#009E73", ("bottleneck", "basic block"), seen((2, 3, 5, 6))),
    Kind("depthwise convolution", "#7BC8A4",
         ("MB conv", "inverted residual", "depthwise conv", "separable conv", "rep mixer"), seen((1, 2, 6, 7))),
    Kind("mean of the neighbors", "#999933", ("pooling", "pool difference"), seen((2, 3, 5, 6))),
)  # fmt: skip
OTHER = Kind("another mixer", "#333333", (), seen())
KIND_OF = {title: kind for kind in KINDS for title in kind.titles}

WIDTH, NAME_WIDTH, STEP, GAP = 51.0, 8.8, 0.9, 1.5
STEM = "#BBBBBB"


def draw_map(rows: dict[str, Anatomy]) -> Figure:
    figure = Figure(figsize=(15, 1.9 + 0.78 * len(rows)), dpi=100, layout="constrained")
    legend, *axes = figure.subplots(
        len(rows) + 1, 1, gridspec_kw={"height_ratios": [1.7, *[0.78] * len(rows)], "hspace": 0}
    )
    draw_legend(legend)
    for axis, (name, made) in zip(axes, rows.items(), strict=True):
        draw_model(axis, name, made)
    return figure


def draw_legend(axis: Axes) -> None:
    axis.set(xlim=(0, WIDTH), ylim=(0, 6), aspect="equal")
    axis.axis("off")
    for number, kind in enumerate(KINDS):
        left, top = (number % 5) * 10.2, 5.4 - 2.9 * (number // 5)
        draw_icon(axis, kind, left, top - 2.0, 2.0)
        axis.text(left + 2.3, top - 1.0, wrapped(kind.name), va="center", fontsize=9)
    axis.text(
        4 * 10.2, 1.5,
        "light gray: stem, or a step to a coarser map\nblack: another mixer\n"
        "height: side of the map, in octaves\none bar: one block",
        va="center", fontsize=9, color="#444444",
    )  # fmt: skip


def wrapped(text: str, width: int = 22) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def draw_icon(axis: Axes, kind: Kind, left: float, bottom: float, side: float) -> None:
    cell = side / 8
    for (row, column), value in np.ndenumerate(kind.icon):
        color = ("#EEEEEE", kind.color, "#000000")[value]
        place = (left + column * cell, bottom + side - (row + 1) * cell)
        axis.add_patch(Rectangle(place, cell, cell, facecolor=color, edgecolor="white", linewidth=0.4))


def draw_model(axis: Axes, name: str, made: Anatomy) -> None:
    one = entry(name)
    axis.set(xlim=(0, WIDTH), ylim=(-0.42, 1.0))
    axis.axis("off")
    axis.text(0, 0.52, one.paper.family, fontsize=12, fontweight="bold", va="center")
    axis.text(0, 0.12, name, fontsize=8.5, color="#444444", va="center")
    left, before = NAME_WIDTH, 1.0
    for part in stages(made):
        assert part.grid is not None
        height = height_of(part)
        corners = [(left, 0), (left, before), (left + GAP - 0.3, height), (left + GAP - 0.3, 0)]
        axis.add_patch(Polygon(corners, facecolor=STEM))
        left += GAP
        for number, title in enumerate(part.titles):
            place = (left + number * STEP, 0.0)
            axis.add_patch(Rectangle(place, STEP * 0.88, height, facecolor=KIND_OF.get(title, OTHER).color))
        middle = left + len(part.titles) * STEP / 2
        axis.text(middle, -0.2, f"{part.dim}·{part.grid[0]}²", ha="center", va="center", fontsize=8)
        left, before = left + len(part.titles) * STEP + 0.3, height
    numbers = (f"{count(one.parameters)}", f"{count(one.macs)} MACs", top1(name))
    for offset, text in zip((7.9, 4.0, 0.0), numbers, strict=True):
        axis.text(WIDTH - offset, 0.35, text, fontsize=10, ha="right", va="center")
    axis.axhline(-0.41, color="#DDDDDD", linewidth=0.8)


def attentive(made: Anatomy) -> float:
    """The share of the blocks that attend: 1 in a ViT, 0 in a ResNet."""
    titles = [title for part in stages(made) for title in part.titles]
    return sum(KIND_OF.get(title, OTHER).name.startswith("attention") for title in titles) / len(titles)


def stages(made: Anatomy) -> list[ModelPart]:
    return [part for part in made.parts if part.is_block]


def height_of(part: ModelPart) -> float:
    """An octave of the map's side is a sixth of the row."""
    assert part.grid is not None
    return float(max(0.08, (np.log2(part.grid[0]) - 1) / 6))


def top1(name: str) -> str:
    """Trained on ImageNet-1k alone, if published; a dagger where a teacher helped, a star where more images did."""
    own = {row.data: row for row in PUBLISHED_ACCURACY if row.model == name and is_smallest(row)}
    for data, mark in (("in1k", ""), ("in1k, distilled", "†"), ("in21k", "*")):
        if data in own:
            return f"{own[data].top1:.1f} %{mark}"  # type: ignore[index]
    return "–"


def draw_accuracy(points: list[tuple[Accuracy, int]]) -> Figure:
    """Published top-1 over MACs; a line joins the sizes of a family."""
    figure = Figure(figsize=(15, 8), dpi=100, layout="constrained")
    points = [(row, macs) for row, macs in points if is_smallest(row)]
    left, right = figure.subplots(1, 2, sharey=True)
    for axis, kinds, title in (
        (left, ("in1k", "in1k, distilled"), "learned from ImageNet-1k"),
        (right, ("in21k",), "learned from more images first"),
    ):
        draw_lines(axis, [(row, macs) for row, macs in points if row.data in kinds])
        axis.set_title(title, fontsize=12)
        axis.set_xscale("log")
        axis.set_xlabel("multiply-accumulates for one image at the size tested")
        axis.grid(color="#EEEEEE")
        axis.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("ImageNet-1k top-1, published, %")
    left.plot([], [], "o", color="#444444", label="from labels")
    left.plot([], [], "o", color="#444444", markerfacecolor="white", label="with a teacher")
    left.legend(loc="lower right", frameon=False)
    return figure


COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#999933")
LINES = ("-", "--", ":")


def draw_lines(axis: Axes, points: list[tuple[Accuracy, int]]) -> None:
    families: dict[tuple[str, str], list[tuple[Accuracy, int]]] = {}
    for row, macs in points:
        families.setdefault((line_of(row), row.data), []).append((row, macs))
    names = sorted({family for family, _ in families})
    labels = []
    for (family, data), own in families.items():
        own.sort(key=lambda point: point[1])
        number = names.index(family)
        color, style = COLORS[number % len(COLORS)], LINES[number // len(COLORS)]
        x, y = [macs for _, macs in own], [row.top1 for row, _ in own]
        face = "white" if data == "in1k, distilled" else color
        axis.plot(x, y, style, marker="o", markersize=5, color=color, markerfacecolor=face, linewidth=1.2)
        labels.append((y[-1], x[-1], family + (", teacher" if data == "in1k, distilled" else ""), color))
    spread(axis, labels)


def is_smallest(row: Accuracy) -> bool:
    """The same model tested on larger images stands in the table only."""
    return row.pixels == min(r.pixels for r in PUBLISHED_ACCURACY if (r.model, r.data) == (row.model, row.data))


def line_of(row: Accuracy) -> str:
    """The family; XCiT on patches of 8 pixels is a line of its own."""
    return entry(row.model).paper.family + (" /8" if row.model.startswith("xcit") and row.model.endswith("_8") else "")


def spread(axis: Axes, labels: list[tuple[float, float, str, str]], least: float = 0.6) -> None:
    """Labels beside the right edge, each near the end of its line, none over another."""
    labels = sorted(labels)
    heights = np.array([end for end, *_ in labels])
    for _ in range(500):
        overlap = np.maximum(0, least - np.diff(heights)) / 2
        heights[:-1] -= overlap
        heights[1:] += overlap
    right = axis.get_xlim()[1]
    for height, (end, x, text, color) in zip(heights, labels, strict=True):
        axis.annotate(
            text, (x, end), (right * 2, height), va="center", fontsize=9, color=color,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "alpha": 0.6},
        )  # fmt: skip


PAGE = """# The map of families

Generated by `python -m benchmarks.family_map` from the models; `vitreous models show NAME` prints the stages of any
model.

![every backbone as the same diagram](../images/map.png)

The rows are sorted from attention in every block to attention in none. A row reads from left to right, in the order
of computation. Light gray is the stem or a step to a coarser map. Every bar is one block; its height is the side of
the map (one octave per halving), its color the kind of mixer. Below each stage are its width and the side of its map.
On the right: parameters, multiply-accumulates at the model's own image size, and published ImageNet-1k accuracy when
trained on ImageNet-1k alone (†: with a teacher, \\*: with more images).

What to look for:

- **ViT** is one color and one height: every token attends to every other, at one coarse resolution, in every block.
- **PVT and Swin** have the same silhouette: four stages, each at half the resolution and about twice the width. They
  differ in color. PVT attends to the whole map with a reduced number of keys (light blue: one key for several cells,
  until in the last stage every cell is a key). Swin attends to every cell, but only within a window, and shifts the
  windows in every second block so that neighboring windows overlap (alternating oranges).
- **DAT** is Swin in its fine stages; in the coarse ones every second block attends to deformable points of the whole
  map.
- **XCiT** is as flat as a ViT, but its attention mixes channels instead of tokens, so that its cost grows linearly
  with the number of tokens; only the last two blocks gather the result into a class token.
- **CoAtNet, CAFormer, FastViT and EfficientFormer** use convolution or pooling where maps are fine and attention
  where they are coarse: the expensive operation where it is cheap.
- **PoolFormer, ConvFormer, CAFormer** are one silhouette in three colors: the papers' point is that the silhouette
  does most of the work.
- **ConvNeXt** is Swin's silhouette without attention.

## Accuracy against cost

![published accuracy over multiply-accumulates](../images/accuracy.png)

Published numbers, measured by the author of timm on public weights or by the authors of the models, each at its test
resolution (the smallest, where there are several); the table lists data, resolution and source of every point.
Training recipes differ between papers, which alone is worth several points: the dots compare published models, not
ideas.

## In numbers

{stages}

## Published accuracy

{accuracy}
"""


def stage_table(rows: dict[str, Anatomy]) -> str:
    lines = ["| model | part | blocks | output | parameters | MACs |", "|---|---|---|---|---:|---:|"]
    for name, made in rows.items():
        for number, part in enumerate(stages(made), start=1):
            cells = (blocks(part).replace("|", "or"), shape(part), count(part.parameters), count(part.macs))
            lines.append(f"| {f'**{name}**' if number == 1 else ''} | {number} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def accuracy_table(points: list[tuple[Accuracy, int]]) -> str:
    lines = ["| model | trained on | pixels | MACs | top-1 | source |", "|---|---|---:|---:|---:|---|"]
    for row, macs in sorted(points, key=lambda point: (entry(point[0].model).paper.family, point[1])):
        cells = (row.model, row.data, str(row.pixels), count(macs), f"{row.top1:.1f} %", row.source)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@cache
def macs_at(name: str, pixels: int) -> int:
    """From the catalog, whose numbers a test recomputes, where it has them."""
    known = entry(name)
    return known.macs if known.image_size == (pixels, pixels) else vt.cost(name, pixels).macs


def main(home: Path = DOCS) -> None:
    rows = dict(sorted(((name, anatomy(name)) for name in ROWS), key=lambda row: -attentive(row[1])))
    points = [(row, macs_at(row.model, row.pixels)) for row in PUBLISHED_ACCURACY]
    images = home / "images"
    draw_map(rows).savefig(images / "map.png")
    draw_accuracy(points).savefig(images / "accuracy.png")
    (home / "concepts" / "map.md").write_text(PAGE.format(stages=stage_table(rows), accuracy=accuracy_table(points)))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=DOCS)
    record = {
        "command": "python -m benchmarks.family_map",
        "commit": commit.stdout.strip(),
        "seed": None,
        "threads": None,
    }
    for name, result in (
        ("map", {name: [entry(name).parameters, entry(name).macs] for name in ROWS}),
        ("accuracy", [[row.model, row.data, row.pixels, macs, row.top1] for row, macs in points]),
    ):
        lines = json.dumps(record | {"result": result})
        (images / f"{name}.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
