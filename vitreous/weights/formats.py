"""Write and read the metadata of Vitreous files, and convert earlier versions of it.

| version | changes |
|---|---|
| 1 | ``format``, ``version``, ``family``, ``config``, ``spec`` |
| 2 | ``edits`` added; the edit ``fold`` replaces the options named ``folded`` |
| 3 | block tensors renamed from ``layers.0…`` to ``blocks.0…`` in most families |
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
from vitreous.weights.bounds import MAX_EDITS, MAX_JSON_LENGTH

FORMAT, VERSION = "vitreous", 3
OLD_BLOCK_NAMES = re.compile(r"(^|\.)layers\.(?=\d)")


def metadata_of(model: Model) -> dict[str, str]:
    """Write a model's metadata; :func:`parse_metadata` reads it."""
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
                f"cannot save the edit {type(edit).__name__}, because it is not registered; "
                f"register it: vitreous.compress.edits.EDITS[{edit.name!r}] = {type(edit).__name__}"
            )
    return [edit.to_json() for edit in edits]


def family_of(config: ModelConfig) -> str:
    """Return the key of a config in ``FAMILIES``; for a custom config or one with custom parts, its class name."""
    for name, family in FAMILIES.items():
        if type(config) is family.config:
            try:
                family.config().override(**config.to_json())
            except ValueError:
                break
            return name
    return type(config).__name__


def parse_metadata(metadata: Mapping[str, str]) -> tuple[ModelConfig | None, tuple[Edit, ...], Spec]:
    """Read the config (None if the family is unknown), edits and spec of metadata of any version."""
    version = int(metadata["version"])
    if version > VERSION:
        raise ValueError(
            f"format version {version} is newer than the versions supported here (up to {VERSION}); upgrade Vitreous"
        )
    spec = Spec.from_json(strict_json(metadata["spec"]))
    options = strict_json(metadata["config"])
    edits = strict_json(metadata["edits"]) if version > 1 else extract_version_1_edits(options)
    if not isinstance(edits, list):
        raise ValueError(f"edits must be a list, got {edits!r:.80}")
    if len(edits) > MAX_EDITS:
        raise ValueError(f"a file may have at most {MAX_EDITS} edits, got {len(edits):,}")
    found = tuple(find_edit(edit) for edit in edits)
    if metadata["family"] not in FAMILIES:
        return None, found, spec
    config = FAMILIES[metadata["family"]].config().override(**options)
    spec.labels.check(config.num_classes)
    return config, found, spec


def rename_old_tensors(tensors: Mapping[str, Tensor], expected: Container[str]) -> dict[str, Tensor]:
    """Rename the tensors of a file of any version to the current names."""
    renamed = {name: OLD_BLOCK_NAMES.sub(r"\1blocks.", name) for name in tensors}
    return {renamed[name] if renamed[name] in expected else name: tensor for name, tensor in tensors.items()}


def strict_json(text: str) -> Any:
    """Parse JSON; refuse the non-finite numbers that Python accepts: NaN, Infinity and 1e999."""
    if len(text) > MAX_JSON_LENGTH:
        raise ValueError(f"JSON may have at most {MAX_JSON_LENGTH:,} characters, got {len(text):,}")
    return json.loads(text, parse_constant=parse_finite, parse_float=parse_finite)


def parse_finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"numbers must be finite, got {text}")
    return number


def extract_version_1_edits(options: Any) -> list[str]:
    """Remove all options ``folded`` from a config's JSON in place, and return the equivalent edits."""
    return ["fold"] if any(pop_nested(options, "folded")) else []


def pop_nested(value: Any, name: str) -> list[Any]:
    """Remove all occurrences of a key from nested JSON in place, and return their values."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    removed = [value.pop(name)] if isinstance(value, dict) and name in value else []
    return removed + [found for part in list(parts) for found in pop_nested(part, name)]
