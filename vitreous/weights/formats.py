"""The metadata of our files, and former versions of it brought up to date.

| version | what came with it |
|---|---|
| 1 | ``format``, ``version``, ``family``, ``config``, ``spec`` |
| 2 | ``edits``; options named ``folded``, which said what the edit ``fold`` says, are gone |
| 3 | tensors of blocks are named ``blocks.0…`` in most families, where they were ``layers.0…`` |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from torch import Tensor

from vitreous.compress.edits import EDITS, find_edit
from vitreous.models import FAMILIES
from vitreous.models.base import Model, ModelConfig
from vitreous.models.edit import Edit
from vitreous.spec import Spec
from vitreous.weights.bounds import LONGEST_TEXT, MOST_EDITS

FORMAT, VERSION = "vitreous", 3
FORMER_BLOCKS = re.compile(r"(^|\.)layers\.(?=\d)")


def metadata_of(model: Model) -> dict[str, str]:
    """Describe a model in the words that :func:`parse_metadata` reads."""
    return {
        "format": FORMAT,
        "version": str(VERSION),
        "family": family_of(model.config),
        "config": json.dumps(model.config.to_json()),
        "edits": json.dumps(edits_to_json(model.edits)),
        "spec": json.dumps(model.spec.to_json()),
    }


def edits_to_json(edits: Iterable[Edit]) -> list[dict[str, Any]]:
    for edit in edits:
        if EDITS.get(edit.name) is not type(edit):
            raise ValueError(
                f"{type(edit).__name__} is not in the table of edits, so that a file could not be read back; "
                f"add it: vitreous.compress.edits.EDITS[{edit.name!r}] = {type(edit).__name__}"
            )
    return [edit.to_json() for edit in edits]


def family_of(config: ModelConfig) -> str:
    """The name under which a file's reader finds the config again; one with parts of one's own has none."""
    for name, family in FAMILIES.items():
        if type(config) is family.config:
            try:
                family.config().override(**config.to_json())
            except ValueError:
                break
            return name
    return type(config).__name__


def parse_metadata(metadata: Mapping[str, str]) -> tuple[ModelConfig | None, tuple[Edit, ...], Spec]:
    """ModelConfig (None where the family is not ours), edits and spec, whatever version wrote them."""
    version = int(metadata["version"])
    if version > VERSION:
        raise ValueError(
            f"format version {version} was written by a newer Vitreous, this one reads up to {VERSION}; upgrade"
        )
    spec = Spec.from_json(strict_json(metadata["spec"]))
    options = strict_json(metadata["config"])
    edits = strict_json(metadata["edits"]) if version > 1 else edits_of_version_1(options)
    if not isinstance(edits, list):
        raise ValueError(f"edits must be a list, got {edits!r:.80}")
    if len(edits) > MOST_EDITS:
        raise ValueError(f"{len(edits):,} edits are more than {MOST_EDITS}")
    replayed = tuple(find_edit(edit) for edit in edits)
    if metadata["family"] not in FAMILIES:
        return None, replayed, spec
    config = FAMILIES[metadata["family"]].config().override(**options)
    spec.labels.check(config.num_classes)
    return config, replayed, spec


def under_current_names(tensors: Mapping[str, Tensor], expected: Container[str]) -> dict[str, Tensor]:
    """The tensors of any version's file under the names that its model expects today."""
    renamed = {name: FORMER_BLOCKS.sub(r"\1blocks.", name) for name in tensors}
    return {renamed[name] if renamed[name] in expected else name: tensor for name, tensor in tensors.items()}


def strict_json(text: str) -> Any:
    """JSON without the numbers that are none, which Python reads: NaN, Infinity, and 1e999."""
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{len(text):,} characters are more than any description has")
    return json.loads(text, parse_constant=finite, parse_float=finite)


def finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number")
    return number


def edits_of_version_1(options: Any) -> list[str]:
    """Take ``folded`` out of a config's JSON, wherever it stands, and say it as an edit."""
    return ["fold"] if any(take_out(options, "folded")) else []


def take_out(value: Any, name: str) -> list[Any]:
    """Remove a key from nested JSON in place; returns its values."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    taken = [value.pop(name)] if isinstance(value, dict) and name in value else []
    return taken + [found for part in list(parts) for found in take_out(part, name)]
