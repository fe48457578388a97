"""Strip the prefixes that wrappers add to the names of a state dict, before any key map is applied.

DDP adds ``module.``, torch.compile ``_orig_mod.``, Lightning ``model.``, transformers ``vit.``, JAX ``params/``, and a
user's own class the name of its attribute. Wrappers may be nested.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from vitreous.weights.structure import strip_wrappers

PREFIX = re.compile(r"[^./]+[./]")
MAX_DEPTH = 4  # of nested wrappers


def strip_prefixes(names: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the names unchanged, then with the most common prefix stripped, then with the next one stripped, and so on.

    Each result is {name: name in the file}. Names without the prefix, such as a classifier next to ``backbone.``, are
    kept. A prefix is stripped only if the names remain unique.
    """
    short = {name: strip_wrappers(name) for name in names}
    if not are_unique(short):
        short = {name: name for name in short}
    yield invert(short)
    for _ in range(MAX_DEPTH):
        prefixes = Counter(match[0] for name in short.values() if (match := PREFIX.match(name)))
        [(prefix, count)] = prefixes.most_common(1) or [("", 0)]
        short = {name: rest.removeprefix(prefix) for name, rest in short.items()}
        if 2 * count <= len(short) or not are_unique(short):
            return
        yield invert(short)


def are_unique(short: Mapping[str, str]) -> bool:
    return len(set(short.values())) == len(short)


def invert(short: Mapping[str, str]) -> dict[str, str]:
    return {rest: name for name, rest in short.items()}


def stripped_prefix(names: Mapping[str, str]) -> str:
    """Return the prefix stripped from most names, given {name: name in the file}; empty if none."""
    prefixes = Counter(full.removesuffix(rest) for rest, full in names.items() if full.endswith(rest))
    return prefixes.most_common(1)[0][0] if prefixes else ""
