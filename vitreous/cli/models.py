"""vitreous models, vitreous models show"""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from vitreous.anatomy import Anatomy, ModelPart, anatomy
from vitreous.catalog import CatalogEntry, Order, catalog, entry
from vitreous.cli.arguments import defaults_to
from vitreous.cli.display import count, out, print_fitting, table
from vitreous.models import find_config

Pattern = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


def models(
    pattern: Pattern = "*",
    family: Annotated[str, defaults_to("all families")] = "",
    max_parameters: Annotated[float | None, defaults_to("no limit")] = None,
    max_macs: Annotated[float | None, defaults_to("no limit")] = None,
    with_weights: bool = False,
    sort: Order = "family",
) -> None:
    """List all models: parameters, cost at the native image size, feature strides, paper and published weights.

    Args:
        pattern: Glob pattern of names, such as "swin*".
        family: Only models of this family, such as Swin or DeiT.
        max_parameters: Upper limit on parameters, such as 30e6.
        max_macs: Upper limit on multiply-accumulates per image, such as 5e9.
        with_weights: Only models with published weights.
        sort: Order by family, name, parameters, macs, or accuracy (best first).
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
        raise ValueError(f"no model matches {pattern!r} within the given limits; vitreous models lists all")
    print_fitting(*(model_table(found, without) for without in ((), ("arXiv",), ("arXiv", "strides"))))
    out.print(LEGEND)


LEGEND = (
    "[dim]MACs: for one image of that size; 1 MAC is 2 FLOPs. Top-1: best published ImageNet-1k accuracy, with the "
    "test resolution; * pretrained on more than ImageNet-1k, † distilled from a teacher. vitreous models show MODEL "
    "lists a model's stages and the names of its weights.[/dim]"
)
MARKS = {"in1k": " ", "in21k": "*", "in1k, distilled": "†"}


def model_table(entries: list[CatalogEntry], without: tuple[str, ...] = ()) -> Table:
    """Tabulate models, leaving out the columns named in ``without``."""
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


def accuracy(one: CatalogEntry) -> str:
    """Format the best top-1 accuracy, test resolution and training-data mark."""
    if one.accuracy is None:
        return ""
    return f"{one.accuracy.top1:.1f} % at {one.accuracy.pixels}{MARKS[one.accuracy.data]}"


def show(model: Name) -> None:
    """Show the stages of a model: blocks, output shapes, strides, parameters and MACs.

    Args:
        model: Model name, such as swin_tiny.
    """
    find_config(model)
    one = entry(model)
    made = anatomy(model)
    out.print(f"[bold]{one.name}[/bold]  {one.paper.title} ({one.paper})\n")
    print_fitting(stage_table(made))
    if one.weights:
        out.print("Published weights: " + ", ".join(f"{one.name}.{tag}" for tag in one.weights))


def stage_table(made: Anatomy) -> Table:
    """Tabulate the parts of a model with their output shapes and cost."""
    rows: list[tuple[str | Text, ...]] = [
        (part.module_path, blocks(part), shape(part), str(part.stride or ""), count(part.parameters), count(part.macs))
        for part in made.parts
    ]
    if made.other_parameters:
        rows.append(("", "tokens, positions", "", "", count(made.other_parameters), ""))
    rows.append(("", Text("total", style="bold"), "", "", count(made.cost.parameters), count(made.cost.macs)))
    title = f"One image of {made.cost.image_size[0]}×{made.cost.image_size[1]} pixels"
    return table(title, ("part", "layers", "output", "stride", "parameters", "MACs"), rows, left=2)


def blocks(part: ModelPart) -> str:
    """Format a stage's blocks, such as 2 × window | shifted window attention."""
    if not part.is_block:
        return part.titles[0]
    *first, last = part.distinct_titles
    shared = f" {last.split()[-1]}"
    if all(kind.endswith(shared) for kind in first):
        first = [kind.removesuffix(shared) for kind in first]
    return f"{len(part.titles)} × " + " | ".join([*first, last])


def shape(part: ModelPart) -> str:
    """Format the output shape: channels × height × width (+ prefix tokens), or tokens × channels."""
    if part.grid is None:
        return f"{part.num_tokens:,} × {part.dim}" if part.num_tokens > 1 else f"{part.dim}"
    extra = part.num_tokens - part.grid[0] * part.grid[1]
    return f"{part.dim} × {part.grid[0]} × {part.grid[1]}" + (f" + {extra}" if extra else "")
