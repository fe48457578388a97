"""What wrappers put before every name of a state dict, taken away for all key maps alike.

DDP puts ``module.`` there, torch.compile ``_orig_mod.``, Lightning ``model.``, transformers ``vit.``, JAX ``params/``,
and everybody's own class the name of its attribute; and all of them wrap each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from vitreous.weights.structure import plain_name

PART = re.compile(r"[^./]+[./]")
DEEPEST = 4  # wrappers around wrappers


def unwrapped(names: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the names as they are, then without what most of them begin with, then without what most begin with then.

    Each time as {name: the name in the file}. What begins otherwise, such as a classifier beside a ``backbone.``, keeps
    its name. Names of which two would become one are left alone.
    """
    short = {name: plain_name(name) for name in names}
    if not distinct(short):
        short = {name: name for name in short}
    yield inverse(short)
    for _ in range(DEEPEST):
        starts = Counter(match[0] for name in short.values() if (match := PART.match(name)))
        [(start, count)] = starts.most_common(1) or [("", 0)]
        short = {name: rest.removeprefix(start) for name, rest in short.items()}
        if 2 * count <= len(short) or not distinct(short):
            return
        yield inverse(short)


def distinct(short: Mapping[str, str]) -> bool:
    return len(set(short.values())) == len(short)


def inverse(short: Mapping[str, str]) -> dict[str, str]:
    return {rest: name for name, rest in short.items()}


def prefix_of(names: Mapping[str, str]) -> str:
    """What was taken from the front of most names, given {name: the name in the file}; empty if nothing was."""
    fronts = Counter(whole.removesuffix(rest) for rest, whole in names.items() if whole.endswith(rest))
    return fronts.most_common(1)[0][0] if fronts else ""
