"""Every model at a glance: its size, its cost, where it comes from, which public weights fit.

The numbers lie beside this file, in ``catalog.json``, since working them all out takes a minute; a test does it and
compares. After adding a model:

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
class Entry:
    name: str
    paper: Paper
    parameters: int
    macs: int  # at the native image size
    image_size: Size
    strides: tuple[int, ...]  # of its maps, in pixels
    weights: tuple[str, ...]  # tags of public weights, each loadable as name.tag
    accuracy: Accuracy | None  # the best of those in weights/accuracy.py


def catalog(
    pattern: str = "*",
    *,
    family: str = "",
    max_parameters: float | None = None,
    max_macs: float | None = None,
    with_weights: bool = False,
    order: Order = "family",
) -> list[Entry]:
    """The models whose name matches a shell pattern, filtered and sorted.

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


KEYS: dict[Order, Callable[[Entry], Any]] = {
    "family": lambda entry: 0,  # sorting is stable, and the table of models is in families
    "name": lambda entry: entry.name,
    "parameters": lambda entry: entry.parameters,
    "macs": lambda entry: entry.macs,
    "accuracy": lambda entry: -entry.accuracy.top1 if entry.accuracy else 0.0,
}


@cache
def entry(name: str) -> Entry:
    numbers = recorded().get(name) or measured(name)
    return Entry(
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


def measured(name: str) -> dict[str, Any]:
    """What the file says of a model, worked out."""
    from vitreous.cost import cost

    found = cost(name)
    strides = [height for height, _ in found.twin.strides]
    return {"parameters": found.parameters, "macs": found.macs, "strides": strides}


def write() -> None:
    lines = [f" {json.dumps(name)}: {json.dumps(measured(name))}" for name in MODELS]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
