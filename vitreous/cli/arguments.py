"""Argument types shared by several commands: help texts, metavars and descriptions of defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional


def defaults_to(description: str, **options: Any) -> Any:
    """Describe a default that is computed, in place of tyro's ``(default: None)``."""
    return tyro.conf.arg(help_behavior_hint=f"(default: {description})", **options)


CHECKPOINT = tyro.conf.arg(
    metavar="WEIGHTS",
    help="A Vitreous checkpoint, a third-party checkpoint (with --model), or a published name such as "
    "deit_tiny_16.in1k.",
)
Weights = Annotated[Path, Positional, CHECKPOINT]
WeightsOrName = Annotated[str, Positional, CHECKPOINT]
WeightsOrModel = Annotated[
    str,
    Positional,
    tyro.conf.arg(
        metavar="MODEL",
        help="A Vitreous checkpoint, a third-party checkpoint (with --model), a published name such as "
        "deit_tiny_16.in1k, or the name of a model, which is then initialized at random.",
    ),
]
Architecture = Annotated[
    str | None,
    defaults_to("read from the checkpoint", help="Architecture of a third-party checkpoint, such as deit_tiny_16."),
]
Images = Annotated[
    tuple[str, ...],
    Positional,
    tyro.conf.arg(metavar="IMAGES…", help="Files, folders, or quoted glob patterns.", help_behavior_hint="(required)"),
]
DATA_HELP = "A folder of class folders, a CSV file, a folder of tar shards, a CIFAR folder, shapes or digits."
Source = Annotated[str, Positional, tyro.conf.arg(metavar="DATA", help=DATA_HELP)]
