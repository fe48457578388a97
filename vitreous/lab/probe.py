"""Looking into a layer from outside: with a seed of its own, by what it multiplies, by what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Chance that starts from ``seed`` inside, and goes on afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def counted_macs(call: Callable[[], object]) -> int:
    """Multiply-accumulates of all products that are carried out while ``call`` runs."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() // 2


def seen_by(function: Callable[[Tensor], Tensor], tokens: Tensor, cells: list[int]) -> Tensor:
    """(asked cells, n): whether a cell's output depends on each token, by its gradient. ``tokens`` are (n, d)."""
    x = tokens.expand(len(cells), -1, -1).clone().requires_grad_()
    out = function(x)
    weights = torch.linspace(1.0, 2.0, out.shape[-1], dtype=out.dtype)  # a plain sum is constant after a norm
    (gradient,) = torch.autograd.grad((out[torch.arange(len(cells)), cells] * weights).sum(), x)
    return (gradient != 0).any(-1)


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
