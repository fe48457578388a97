"""What others call our weights.

A key map is a list of (our name, their name). In theirs ``{i}`` stands for a number, ``{p}`` for weight or bias,
and ``(a|b)`` for either; a tuple of names is stacked into one tensor, as when query, key and value are kept apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Name = str | tuple[str, ...]


@dataclass(frozen=True)
class Translation:
    """Foreign tensors under our names, and the foreign names that found no place."""

    source: str
    tensors: dict[str, Tensor]
    unmapped: list[str]
    unused: list[str]


@dataclass(frozen=True)
class KeyMap:
    source: str
    names: tuple[tuple[str, Name], ...]
    prefix: str = ""  # a pattern that may stand before every name
    unused: tuple[str, ...] = ()  # names of theirs that a backbone with a classifier has no use for

    @cached_property
    def rules(self) -> list[tuple[re.Pattern[str], str, int, int]]:
        """(their pattern, our template, index in the stack, size of the stack)."""
        rules = []
        for ours, theirs in self.names:
            parts = (theirs,) if isinstance(theirs, str) else theirs
            rules += [(self.compile(name), ours, index, len(parts)) for index, name in enumerate(parts)]
        return rules

    def compile(self, name: str) -> re.Pattern[str]:
        pattern = name.replace(".", r"\.").replace("{i}", r"(?P<i>\d+)").replace("{p}", "(?P<p>weight|bias)")
        return re.compile(f"(?:{self.prefix})?{pattern}")

    def translate(self, theirs: Mapping[str, Tensor]) -> Translation:
        stacks: dict[str, list[Tensor | None]] = {}
        unmapped: list[str] = []
        unused: list[str] = []
        for key, tensor in theirs.items():
            for pattern, template, index, size in self.rules:
                if match := pattern.fullmatch(key):
                    stacks.setdefault(template.format(**match.groupdict()), [None] * size)[index] = tensor
                    break
            else:
                known = any(self.compile(name).fullmatch(key) for name in self.unused)
                (unused if known else unmapped).append(key)
        whole = {ours: [part for part in parts if part is not None] for ours, parts in stacks.items()}
        tensors = {
            ours: torch.cat(parts) if len(parts) > 1 else parts[0]
            for ours, parts in whole.items()
            if len(parts) == len(stacks[ours])
        }
        return Translation(self.source, tensors, unmapped, unused)
