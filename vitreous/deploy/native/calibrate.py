"""Calibration for static quantization: fixed activation ranges save the min/max reduction at run time.

Ranges are the minimum and maximum, without clipping. Clipping outliers is the usual advice, but a vision transformer
depends on them: with the best clipping threshold per layer DeiT-Tiny's logits got worse.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitreous.deploy.native.convert import Range


@torch.inference_mode()
def calibrate_ranges(model: nn.Module, images: Tensor, names: Iterable[str], top: int) -> dict[str, Range]:
    """Return per layer the (low, step) that quantizes its inputs to integers from 0 to ``top``."""
    found: dict[str, Range] = {}

    def observe(name: str, inputs: tuple[Tensor, ...]) -> None:
        low, step = found.get(name, (0.0, 0.0))
        high = max(low + step * top, float(inputs[0].max()))
        low = min(low, float(inputs[0].min()))
        found[name] = low, max(high - low, 1e-30) / top

    hooks = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, inputs, name=name: observe(name, inputs))
        for name in names
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found
