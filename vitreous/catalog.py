"""A searchable catalog of all models: size, cost, paper and published weights.

Parameters and MACs are stored in ``catalog.json``, since computing them takes a minute; a test recomputes and compares
them. After adding a model, run:

    python -m vitreous.catalog
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from vitreous.models import MODELS, paper_of
from vitreous.models.family import Paper
from vitreous.spec import Size
from vitreous.weights.accuracy import Accuracy, best
from vitreous.weights.published import PUBLISHED

FILE = Path(__file__).with_suffix(".json")
Order = Literal["family", "name", "parameters", "macs", "accuracy"]


@dataclass(frozen=True)
class CatalogEntry:
    """A model of the catalog."""

    name: str
    paper: Paper
    parameters: int
    macs: int  # at the native image size
    image_size: Size
    strides: tuple[int, ...]  # of its feature maps, in pixels
    weights: tuple[str, ...]  # tags of published weights, each loadable as name.tag
    accuracy: Accuracy | None  # the best in weights/accuracy.py


def catalog(
    pattern: str = "*",
    *,
    family: str = "",
    max_parameters: float | None = None,
    max_macs: float | None = None,
    with_weights: bool = False,
    order: Order = "family",
) -> list[CatalogEntry]:
    """List models, filtered and sorted.

    Args:
        pattern: Shell pattern of the name, e.g. ``"vit_*"``.
        family: Family of the model, ignoring case.
        max_parameters: Largest number of parameters.
        max_macs: Largest number of multiply-accumulates at the native image size.
        with_weights: Only models with published weights.
        order: Sort key; by default models are grouped by family.

    Raises:
        ValueError: The family or the order is unknown.

    >>> [entry.name for entry in catalog(max_parameters=6e6, with_weights=True, order="accuracy")]
    """
    if order not in KEYS:
        raise ValueError(f"order must be one of {', '.join(KEYS)}, got {order!r}")
    found = [entry(name) for name in MODELS if fnmatch.fnmatchcase(name, pattern)]
    if family:
        families = {one.paper.family.lower(): one.paper.family for one in map(entry, MODELS)}
        if family.lower() not in families:
            raise ValueError(f"there is no family {family!r}; there are {', '.join(families.values())}")
        found = [one for one in found if one.paper.family.lower() == family.lower()]
    return sorted(
        (
            one
            for one in found
            if (max_parameters is None or one.parameters <= max_parameters)
            and (max_macs is None or one.macs <= max_macs)
            and (one.weights or not with_weights)
        ),
        key=KEYS[order],
    )


KEYS: dict[Order, Callable[[CatalogEntry], Any]] = {
    "family": lambda entry: 0,  # sorting is stable, and MODELS is grouped by family
    "name": lambda entry: entry.name,
    "parameters": lambda entry: entry.parameters,
    "macs": lambda entry: entry.macs,
    "accuracy": lambda entry: -entry.accuracy.top1 if entry.accuracy else 0.0,
}


@cache
def entry(name: str) -> CatalogEntry:
    numbers = recorded().get(name) or compute_entry(name)
    return CatalogEntry(
        name=name,
        paper=paper_of(name),
        parameters=numbers["parameters"],
        macs=numbers["macs"],
        image_size=MODELS[name].image_size,
        strides=tuple(numbers["strides"]),
        weights=tuple(weights.removeprefix(f"{name}.") for weights, row in PUBLISHED.items() if row.model == name),
        accuracy=best(name),
    )


@cache
def recorded() -> dict[str, dict[str, Any]]:
    numbers: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return numbers


def compute_entry(name: str) -> dict[str, Any]:
    """Compute a model's entry of ``catalog.json``."""
    from vitreous.cost import cost

    found = cost(name)
    strides = [height for height, _ in found.meta_model.strides]
    return {"parameters": found.parameters, "macs": found.macs, "strides": strides}


def write() -> None:
    lines = [f" {json.dumps(name)}: {json.dumps(compute_entry(name))}" for name in MODELS]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
