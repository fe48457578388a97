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

LARGEST_SIDE = 1 << 14  # of an image, in pixels
MOST_CELLS = 1 << 22  # of the grid that its patches make
MOST_CHANNELS = 1 << 12
LARGEST = 1 << 24  # any other number


def check_bounds(config: ModelConfig) -> None:
    """Refuse a config that no model could have."""
    for name, value in numbers_in(config):
        most = {"image_size": LARGEST_SIDE, "num_channels": MOST_CHANNELS}.get(name, LARGEST)
        if value > most:
            raise ValueError(f"{name} must be at most {most:,} in a file, got {value:,}")
    patch = getattr(config, "patch_size", (4, 4))
    cells = -(-config.image_size[0] // patch[0]) * -(-config.image_size[1] // patch[1])
    if cells > MOST_CELLS:
        raise ValueError(f"an image of {config.image_size} pixels in patches of {patch} has {cells:,} cells: too many")


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
