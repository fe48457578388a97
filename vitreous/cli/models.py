"""vitreous models, vitreous models show"""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from vitreous.anatomy import Anatomy, Part, anatomy
from vitreous.catalog import Entry, Order, catalog, entry
from vitreous.cli.show import count, out, print_fitting, table
from vitreous.models import find_config

Pattern = Annotated[str, tyro.conf.Positional]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


def models(
    pattern: Pattern = "*",
    family: str = "",
    max_parameters: float | None = None,
    max_macs: float | None = None,
    with_weights: bool = False,
    sort: Order = "family",
) -> None:
    """Every model: its size, its cost at its native image size, the strides of its maps, its paper and public weights.

    Args:
        pattern: Names to show, such as "swin*".
        family: Only this family, such as Swin or DeiT.
        max_parameters: No more parameters than these, such as 30e6.
        max_macs: No more multiply-accumulates for one image than these, such as 5e9.
        with_weights: Only models that have public weights.
        sort: By family, name, parameters, macs, or accuracy (best first).
    """
    found = catalog(
        pattern,
        family=family,
        max_parameters=max_parameters,
        max_macs=max_macs,
        with_weights=with_weights,
        order=sort,
    )
    if not found:
        raise ValueError(f"no model matches {pattern!r} and the limits given; vitreous models shows all")
    print_fitting(*(overview(found, without) for without in ((), ("arXiv",), ("arXiv", "strides"))))
    out.print(LEGEND)


LEGEND = (
    "[dim]MACs for one image of that size; 1 MAC is 2 FLOPs. Top-1: the best known here on ImageNet-1k, with the "
    "pixels it was tested at; * after learning from more than ImageNet-1k's million images, † from a teacher. "
    "vitreous models show MODEL: its stages, and the names of its weights.[/dim]"
)
MARKS = {"in1k": " ", "in21k": "*", "in1k, distilled": "†"}


def overview(entries: list[Entry], without: tuple[str, ...] = ()) -> Table:
    columns = {
        "model": [one.name for one in entries],
        "parameters": [count(one.parameters) for one in entries],
        "MACs": [count(one.macs) for one in entries],
        "pixels": [str(one.image_size[0]) for one in entries],
        "strides": [" ".join(map(str, one.strides)) for one in entries],
        "top-1": [accuracy(one) for one in entries],
        "weights": [str(len(one.weights) or "") for one in entries],
        "arXiv": [one.paper.arxiv for one in entries],
    }
    shown = {name: cells for name, cells in columns.items() if name not in without}
    return table(f"{len(entries)} models", list(shown), zip(*shown.values(), strict=True))


def accuracy(one: Entry) -> str:
    if one.accuracy is None:
        return ""
    return f"{one.accuracy.top1:.1f} % at {one.accuracy.pixels}{MARKS[one.accuracy.data]}"


def show(model: Name) -> None:
    """One model, stage by stage: what it is made of, and the shapes that come out.

    Args:
        model: A model's name, such as swin_tiny.
    """
    find_config(model)
    one = entry(model)
    made = anatomy(model)
    out.print(f"[bold]{one.name}[/bold]  {one.paper.title} ({one.paper})\n")
    print_fitting(stages(made))
    if one.weights:
        out.print("Public weights: " + ", ".join(f"{one.name}.{tag}" for tag in one.weights))


def stages(made: Anatomy) -> Table:
    rows: list[tuple[str | Text, ...]] = [
        (part.home, blocks(part), shape(part), str(part.stride or ""), count(part.parameters), count(part.macs))
        for part in made.parts
    ]
    if made.other_parameters:
        rows.append(("", "tokens and the like", "", "", count(made.other_parameters), ""))
    rows.append(("", Text("in all", style="bold"), "", "", count(made.cost.parameters), count(made.cost.macs)))
    title = f"One image of {made.cost.image_size[0]}×{made.cost.image_size[1]} pixels"
    return table(title, ("part", "what", "comes out", "stride", "parameters", "MACs"), rows, left=2)


def blocks(part: Part) -> str:
    """2 × window | shifted window attention"""
    if not part.is_block:
        return part.titles[0]
    *first, last = part.kinds
    shared = f" {last.split()[-1]}"
    if all(kind.endswith(shared) for kind in first):
        first = [kind.removesuffix(shared) for kind in first]
    return f"{len(part.titles)} × " + " | ".join([*first, last])


def shape(part: Part) -> str:
    """Channels × rows × columns, or tokens × channels."""
    if part.grid is None:
        return f"{part.num_tokens:,} × {part.dim}" if part.num_tokens > 1 else f"{part.dim}"
    extra = part.num_tokens - part.grid[0] * part.grid[1]
    return f"{part.dim} × {part.grid[0]} × {part.grid[1]}" + (f" + {extra}" if extra else "")
