"""Multiply-accumulates as torch counts them, product by product: no formula of ours has a part in it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitreous.models import create_model


def counted_macs(name: str, image_size: int, **overrides: Any) -> dict[str, int]:
    """The MACs of every module (by its path; "" is the whole model) in one forward pass of one image."""
    with torch.device("meta"):
        model = create_model(name, image_size=image_size, **overrides)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, image_size, image_size))
    root = type(model).__name__
    return {
        path.removeprefix(root).removeprefix("."): sum(operations.values()) // 2
        for path, operations in counter.get_flop_counts().items()
        if path != "Global"
    }
