"""Mutations: deliberate mistakes that the experiment of a claim must detect."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Mutation(NamedTuple):
    """A mistake patched into ``target``; the experiment of ``claim`` must then be judged broken."""

    claim: str
    description: str
    target: str  # module:attribute, with dots for nested attributes
    mutate: Callable[[Any], Any]  # original → replacement


def resolve(target: str) -> tuple[Any, str]:
    """Return the object that holds the attribute, and the attribute's name."""
    module, path = target.split(":")
    holder = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    return holder, name
