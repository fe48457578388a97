"""Measure which inputs a layer's output depends on, and capture the inputs of its submodules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


def dependency_mask(function: Function, tokens: Float[Tensor, "n d"], cells: list[int]) -> Bool[Tensor, "c n"]:
    """Return whether the output at each of ``cells`` depends on each token, by nonzero gradients."""
    x = tokens.expand(len(cells), -1, -1).clone().requires_grad_()
    out = function(x)
    weights = torch.linspace(1.0, 2.0, out.shape[-1], dtype=out.dtype)  # a plain sum is constant after a norm
    (gradient,) = torch.autograd.grad((out[torch.arange(len(cells)), cells] * weights).sum(), x)
    return (gradient != 0).any(-1)


@torch.no_grad()
def effect_of_others(function: Function, batch: Float[Tensor, "b ..."]) -> float:
    """Return the relative change of the first image's output when the other images of the batch are replaced."""
    others = torch.cat([batch[:1], torch.randn_like(batch[1:])])
    return relative_change(function(batch)[0], function(others)[0])


def relative_change(before: Tensor, after: Tensor) -> float:
    """Compute ‖after − before‖ / ‖before‖."""
    return float((after - before).norm() / before.norm())


def capture_inputs(part: nn.Module, call: Callable[[], object]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Return the positional and keyword inputs of a submodule in its last call while ``call`` runs."""
    calls: list[Any] = []
    hook = part.register_forward_pre_hook(lambda _, given, options: calls.append((given, options)), with_kwargs=True)
    try:
        call()
    finally:
        hook.remove()
    given, options = calls[-1]
    return given, options
