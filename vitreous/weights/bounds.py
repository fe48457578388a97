"""How large a model a file may ask for: checked before it is built, so that no description costs memory or minutes.

What tensors a config needs is compared with those that the file holds, on the meta device. These bounds are for what
takes time or memory even there: each lies far beyond every model that is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from vitreous.models.base import ModelConfig
from vitreous.options import Options

MOST = {"image_size": 1 << 14, "num_channels": 1 << 12, "num_classes": 1 << 24, "num_features": 1 << 14}
LARGEST = 1 << 20  # any other number
MOST_CELLS = 1 << 22  # of the grid that an image's patches make
MOST_TENSORS = 1 << 16
MOST_EDITS = 1 << 8
LONGEST_TEXT = 1 << 24  # of a description, in characters


def check_bounds(config: ModelConfig) -> None:
    """Refuse a config that no model could have."""
    for name, value in numbers_in(config):
        if value > (most := MOST.get(name, LARGEST)):
            raise ValueError(f"{name} must be at most {most:,} in a file, got {value:,}")
    patch = getattr(config, "patch_size", (4, 4))
    cells = -(-config.image_size[0] // patch[0]) * -(-config.image_size[1] // patch[1])
    if cells > MOST_CELLS:
        raise ValueError(f"an image of {config.image_size} pixels in patches of {patch} has {cells:,} cells: too many")


def check_number(num_tensors: int) -> None:
    if num_tensors > MOST_TENSORS:
        raise ValueError(f"{num_tensors:,} tensors are more than any model has, which is at most {MOST_TENSORS:,}")


def check_blocks(config: ModelConfig | None, num_tensors: int) -> None:
    """Refuse a config with more blocks than there are tensors: building each of them takes a while."""
    named = numbers_in(config) if config is not None else ()
    if (blocks := sum(value for name, value in named if name in ("depth", "depths"))) > num_tensors:
        raise ValueError(f"a config of {blocks:,} blocks cannot belong to the file's {num_tensors:,} tensors")


def numbers_in(options: Options) -> Iterator[tuple[str, float]]:
    """Every number of settings with its name, also in rows and in settings inside of these."""
    for field in fields(options):
        for value in flat(getattr(options, field.name)):
            if isinstance(value, Options):
                yield from numbers_in(value)
            elif isinstance(value, int | float):
                yield field.name, value


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from flat(part)
    else:
        yield value
