"""Fixed ranges for activations, found with pictures: static quantisation saves the search for extremes at run time.

One token that sticks out would stretch the range, and every other number would be rounded more coarsely. So a range
may leave out the extremes: of several cuts the one is taken whose numbers come back with the least squared error.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.native.engine import Range

#: Shares of the numbers that a range may leave out at either end.
CUTS = (0.0, 1e-5, 1e-4, 1e-3, 3e-3)
SAMPLE = 200_000


@torch.inference_mode()
def find_ranges(model: nn.Module, images: Tensor, names: Iterable[str], top: int) -> dict[str, Range]:
    """For each layer named the low and the step that its inputs are rounded with, to integers from 0 to ``top``."""
    seen: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: seen.__setitem__(name, sample(given[0]))
        )
        for name in names
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: best_range(numbers, top) for name, numbers in seen.items()}


def sample(numbers: Tensor) -> Float[Tensor, "n"]:
    """At most so many of the numbers, evenly spread, sorted."""
    flat = numbers.detach().float().flatten()
    return flat[:: max(1, len(flat) // SAMPLE)].sort().values


def best_range(ordered: Float[Tensor, "n"], top: int) -> Range:
    ranges = [range_without(ordered, cut, top) for cut in CUTS]
    return min(ranges, key=lambda low_and_step: squared_error(ordered, *low_and_step, top))


def range_without(ordered: Float[Tensor, "n"], cut: float, top: int) -> Range:
    left_out = int(cut * len(ordered))
    low, high = min(0.0, float(ordered[left_out])), max(0.0, float(ordered[-1 - left_out]))
    return low, max(high - low, 1e-30) / top


def squared_error(numbers: Float[Tensor, "n"], low: float, step: float, top: int) -> float:
    back = low + step * ((numbers - low) / step).round().clamp(0, top)
    return float((numbers - back).square().mean())
