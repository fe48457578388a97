"""What a layer's output depends on, and what its parts are handed on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


def seen_by(function: Function, tokens: Float[Tensor, "n d"], cells: list[int]) -> Bool[Tensor, "c n"]:
    """Whether the output at each of ``cells`` depends on each token, by its gradient."""
    x = tokens.expand(len(cells), -1, -1).clone().requires_grad_()
    out = function(x)
    weights = torch.linspace(1.0, 2.0, out.shape[-1], dtype=out.dtype)  # a plain sum is constant after a norm
    (gradient,) = torch.autograd.grad((out[torch.arange(len(cells)), cells] * weights).sum(), x)
    return (gradient != 0).any(-1)


@torch.no_grad()
def effect_of_others(function: Function, batch: Float[Tensor, "b ..."]) -> float:
    """How much the first image's output changes when the images beside it become others."""
    others = torch.cat([batch[:1], torch.randn_like(batch[1:])])
    return relative_change(function(batch)[0], function(others)[0])


def relative_change(before: Tensor, after: Tensor) -> float:
    """‖after − before‖ / ‖before‖"""
    return float((after - before).norm() / before.norm())


def given_to(part: nn.Module, call: Callable[[], object]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """What a part of a model is handed while ``call`` runs, the last time: in order, and by name."""
    heard: list[Any] = []
    hook = part.register_forward_pre_hook(lambda _, given, options: heard.append((given, options)), with_kwargs=True)
    try:
        call()
    finally:
        hook.remove()
    given, options = heard[-1]
    return given, options
