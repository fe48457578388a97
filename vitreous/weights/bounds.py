"""Limits on the model that a file may describe, checked before it is built so that no file can exhaust memory or time.

The tensors of a config are compared with those in the file on the meta device. These limits apply to anything that
takes time or memory even there; each is far above every known model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from vitreous.models.base import ModelConfig
from vitreous.options import Options

LIMITS = {"image_size": 1 << 14, "num_channels": 1 << 12, "num_classes": 1 << 24, "num_features": 1 << 14}
DEFAULT_LIMIT = 1 << 20  # of any other number
MAX_PATCHES = 1 << 22  # of an image
MAX_TENSORS = 1 << 16
MAX_EDITS = 1 << 8
MAX_JSON_LENGTH = 1 << 24  # characters


def check_bounds(config: ModelConfig) -> None:
    """Raise ``ValueError`` if a number in a config exceeds its limit."""
    for name, value in numeric_options(config):
        if value > (limit := LIMITS.get(name, DEFAULT_LIMIT)):
            raise ValueError(f"{name} must be at most {limit:,} in a file, got {value:,}")
    patch = getattr(config, "patch_size", (4, 4))
    patches = -(-config.image_size[0] // patch[0]) * -(-config.image_size[1] // patch[1])
    if patches > MAX_PATCHES:
        size = f"image_size {config.image_size} and patch_size {patch}"
        raise ValueError(f"{size} give {patches:,} patches; at most {MAX_PATCHES:,} are allowed in a file")


def check_tensor_count(num_tensors: int) -> None:
    if num_tensors > MAX_TENSORS:
        raise ValueError(f"a file may hold at most {MAX_TENSORS:,} tensors, got {num_tensors:,}")


def check_blocks(config: ModelConfig | None, num_tensors: int) -> None:
    """Refuse a config with more blocks than the file has tensors, because building each block takes time."""
    numbers = numeric_options(config) if config is not None else ()
    if (blocks := sum(value for name, value in numbers if name in ("depth", "depths"))) > num_tensors:
        raise ValueError(f"the config has {blocks:,} blocks but the file only {num_tensors:,} tensors; save it again")


def numeric_options(options: Options) -> Iterator[tuple[str, float]]:
    """Yield the name and value of every number in a config, including those in lists and nested options."""
    for field in fields(options):
        for value in flatten(getattr(options, field.name)):
            if isinstance(value, Options):
                yield from numeric_options(value)
            elif isinstance(value, int | float):
                yield field.name, value


def flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from flatten(part)
    else:
        yield value
