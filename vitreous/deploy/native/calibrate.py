"""Fixed ranges for activations, found with images: static quantization saves the search for extremes at run time.

The extremes themselves are kept. To cut them off, so that the others are rounded more finely, is the usual advice, but
what sticks out in a vision transformer matters: with cuts that were best for each layer DeiT-Tiny's logits got worse.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitreous.deploy.native.convert import Range


@torch.inference_mode()
def find_ranges(model: nn.Module, images: Tensor, names: Iterable[str], top: int) -> dict[str, Range]:
    """For each layer named the low and the step that its inputs are rounded with, to integers from 0 to ``top``."""
    found: dict[str, Range] = {}

    def look(name: str, given: tuple[Tensor, ...]) -> None:
        low, step = found.get(name, (0.0, 0.0))
        high = max(low + step * top, float(given[0].max()))
        low = min(low, float(given[0].min()))
        found[name] = low, max(high - low, 1e-30) / top

    hooks = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, given, name=name: look(name, given))
        for name in names
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found
