"""Key maps: translation of third-party parameter names to Vitreous names.

A key map is a list of (native name, foreign name), native being that of Vitreous. In foreign names, ``{i}`` and ``{j}``
match numbers, ``{p}`` weight or bias, ``{rest}`` the remainder of a name and ``(a|b)`` either. The tensors of a tuple
of foreign names are concatenated, e.g. separate query, key and value.
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
PLACEHOLDERS = {"i": r"\d+", "j": r"\d+", "p": "weight|bias", "rest": r"\S+"}


@dataclass(frozen=True)
class Translation:
    """The tensors of a file under native names, and the foreign names that were not translated."""

    source: str  # the library whose names the file uses
    tensors: dict[str, Tensor]  # by native name
    origin: dict[str, str] = field(default_factory=dict)  # native name → foreign name, or several joined by " + "
    unmapped: list[str] = field(default_factory=list)  # foreign names without a native name
    unused: list[str] = field(default_factory=list)  # foreign names that are not needed
    options: dict[str, Any] = field(default_factory=dict)  # config options that the source determines
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class KeyMap:
    """The names of one library, without the prefixes of wrappers (removed beforehand by ``weights/prefixes.py``)."""

    source: str
    names: tuple[tuple[str, Name], ...]
    unused: tuple[str, ...] = ()  # foreign names that a backbone with a classifier does not need
    options: tuple[tuple[str, Any], ...] = ()  # config options without which the weights mean something else

    @cached_property
    def rules(self) -> list[tuple[re.Pattern[str], str | None, int, int]]:
        """Rows of (foreign pattern, native template or None if unused, index in the stack, size of the stack)."""
        rules: list[tuple[re.Pattern[str], str | None, int, int]] = []
        for native, foreign in self.names:
            parts = (foreign,) if isinstance(foreign, str) else foreign
            rules += [(self.compile(name), native, index, len(parts)) for index, name in enumerate(parts)]
        return rules + [(self.compile(name), None, 0, 1) for name in self.unused]

    def compile(self, name: str) -> re.Pattern[str]:
        pattern = name.replace(".", r"\.")
        for placeholder, regex in PLACEHOLDERS.items():
            pattern = pattern.replace(f"{{{placeholder}}}", f"(?P<{placeholder}>{regex})")
        return re.compile(pattern)

    def translate(self, foreign: Mapping[str, Tensor]) -> Translation:
        """Translate the names of all tensors; duplicates and parts of incomplete stacks count as unmapped."""
        stacks: dict[str, list[str | None]] = {}
        result = Translation(self.source, {}, options=dict(self.options))
        for key in foreign:
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
        for native, stack in stacks.items():
            keys = [key for key in stack if key is not None]
            parts = [foreign[key] for key in keys]
            if len(keys) < len(stack) or not stackable(parts):
                result.unmapped.extend(keys)
                continue
            result.tensors[native] = torch.cat(parts) if len(parts) > 1 else parts[0]
            result.origin[native] = " + ".join(keys)
        add_omitted(result.tensors)
        for name, tensor in result.tensors.items():
            result.tensors[name] = self.to_native_layout(name, tensor)
        return result

    def to_native_layout(self, name: str, tensor: Tensor) -> Tensor:
        """Convert a tensor to the layout of its native name; families with another layout override this."""
        return tensor


def add_prefixes(native_prefix: str, foreign_prefix: str, names: Names) -> Names:
    """Put a prefix and a dot before all native names, and another before all foreign names."""
    return tuple((f"{native_prefix}.{native}", f"{foreign_prefix}.{foreign}") for native, foreign in names)


def add_omitted(tensors: dict[str, Tensor]) -> None:
    """Add the first axis of relative bias tables and BatchNorm's batch counts, which third-party files may omit.

    Only older files omit the counts. They become 0, since they do not affect any output.
    """
    for name, tensor in list(tensors.items()):
        if name.endswith(".relative.table") and tensor.ndim == 2:
            tensors[name] = tensor[None]
        if name.endswith(".running_var"):
            tensors.setdefault(f"{name.removesuffix('running_var')}num_batches_tracked", torch.tensor(0))


def stackable(parts: list[Tensor]) -> bool:
    return len(parts) == 1 or all(part.ndim > 0 and part.shape == parts[0].shape for part in parts)


def keymaps_of(model: Model) -> tuple[KeyMap, ...]:
    """Return the key maps for a model, from the module here that is named after its family; none if there is none."""
    family = find_family(model.config)
    if family is None or find_spec(f"{__name__}.{family.name}") is None:
        return ()
    maps: tuple[KeyMap, ...] = import_module(f"{__name__}.{family.name}").keymaps(model.config)
    return maps
