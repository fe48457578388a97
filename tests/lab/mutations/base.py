"""A mistake that somebody could make, and the claim whose experiment must notice it."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Mutation(NamedTuple):
    claim: str
    what: str
    home: str  # module:attribute, dots for what lies deeper
    wrong: Callable[[Any], Any]  # the original → what takes its place


def place(home: str) -> tuple[Any, str]:
    """The object that holds the attribute, and the attribute's name."""
    module, path = home.split(":")
    holder = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    return holder, name
