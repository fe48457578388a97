"""What others call our weights.

A key map is a list of (our name, their name). In theirs ``{i}`` and ``{j}`` stand for numbers, ``{p}`` for weight or
bias, ``{rest}`` for the remainder of a name, and ``(a|b)`` for either; a tuple of names is stacked into one tensor, as
when query, key and value are kept apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from vitreous.models import find_family
from vitreous.models.base import Model

Name = str | tuple[str, ...]
Names = tuple[tuple[str, str], ...]
WORDS = {"i": r"\d+", "j": r"\d+", "p": "weight|bias", "rest": r"\S+"}


@dataclass(frozen=True)
class Translation:
    """Tensors under our names, what the file calls them, and its names that found no place.

    ``options`` are those of the config that the file's origin decides.
    """

    source: str
    tensors: dict[str, Tensor]
    origin: dict[str, str] = field(default_factory=dict)
    unmapped: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class KeyMap:
    """The names of one library. What wrappers put before them is taken away first (``weights/prefixes.py``)."""

    source: str
    names: tuple[tuple[str, Name], ...]
    unused: tuple[str, ...] = ()  # names of theirs that a backbone with a classifier has no use for
    options: tuple[tuple[str, Any], ...] = ()  # of the config, without which their weights would mean something else

    @cached_property
    def rules(self) -> list[tuple[re.Pattern[str], str | None, int, int]]:
        """(their pattern, our template or None if unused, index in the stack, size of the stack)."""
        rules: list[tuple[re.Pattern[str], str | None, int, int]] = []
        for ours, theirs in self.names:
            parts = (theirs,) if isinstance(theirs, str) else theirs
            rules += [(self.compile(name), ours, index, len(parts)) for index, name in enumerate(parts)]
        return rules + [(self.compile(name), None, 0, 1) for name in self.unused]

    def compile(self, name: str) -> re.Pattern[str]:
        pattern = name.replace(".", r"\.")
        for word, meaning in WORDS.items():
            pattern = pattern.replace(f"{{{word}}}", f"(?P<{word}>{meaning})")
        return re.compile(pattern)

    def translate(self, theirs: Mapping[str, Tensor]) -> Translation:
        """A name that is met twice, or part of a stack that is not whole, finds no place."""
        stacks: dict[str, list[str | None]] = {}
        result = Translation(self.source, {}, options=dict(self.options))
        for key in theirs:
            for pattern, template, index, size in self.rules:
                if match := pattern.fullmatch(key):
                    if template is None:
                        result.unused.append(key)
                        break
                    stack = stacks.setdefault(template.format(**match.groupdict()), [None] * size)
                    if len(stack) != size or stack[index] is not None:
                        result.unmapped.append(key)
                    else:
                        stack[index] = key
                    break
            else:
                result.unmapped.append(key)
        for ours, stack in stacks.items():
            keys = [key for key in stack if key is not None]
            parts = [theirs[key] for key in keys]
            if len(keys) < len(stack) or not stackable(parts):
                result.unmapped.extend(keys)
                continue
            result.tensors[ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
            result.origin[ours] = " + ".join(keys)
        complete(result.tensors)
        for name, tensor in result.tensors.items():
            result.tensors[name] = self.as_ours(name, tensor)
        return result

    def as_ours(self, name: str, tensor: Tensor) -> Tensor:
        """What lies under one of our names, laid out as ours; a family whose papers do otherwise says how."""
        return tensor


def below(ours: str, theirs: str, names: Names) -> Names:
    """The same names of something that stands below these."""
    return tuple((f"{ours}.{mine}", f"{theirs}.{other}") for mine, other in names)


def complete(tensors: dict[str, Tensor]) -> None:
    """Two habits of others. Their tables of relative biases have an axis less than our tables of positions. And older
    files do not say how many batches BatchNorm's statistics saw, on which nothing computed depends: 0.
    """
    for name, tensor in list(tensors.items()):
        if name.endswith(".relative.table") and tensor.ndim == 2:
            tensors[name] = tensor[None]
        if name.endswith(".running_var"):
            tensors.setdefault(f"{name.removesuffix('running_var')}num_batches_tracked", torch.tensor(0))


def stackable(parts: list[Tensor]) -> bool:
    return len(parts) == 1 or all(part.ndim > 0 and part.shape == parts[0].shape for part in parts)


def keymaps_of(model: Model) -> tuple[KeyMap, ...]:
    """The key maps for a model: those of the file beside this one that bears the name of its family."""
    family = find_family(model.config)
    if family is None or find_spec(f"{__name__}.{family.name}") is None:
        return ()
    maps: tuple[KeyMap, ...] = import_module(f"{__name__}.{family.name}").keymaps(model.config)
    return maps
