"""Exponential moving average (EMA) of the weights, which usually generalizes better than the last iterate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ExponentialMovingAverage:
    """EMA of a model's weights with a warm-up of the decay.

        a ← d · a + (1 − d) · w,     d = min(decay, (1 + t) / (10 + t))

    The warm-up makes the average forget the first steps quickly. Floating-point buffers, such as batch-norm statistics,
    are averaged like weights; integer buffers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in saved_tensors(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        keep = min(self.decay, (1 + step) / (10 + step))
        for name, value in saved_tensors(model).items():
            if value.is_floating_point():
                self.values[name].lerp_(value, 1 - keep)
            else:
                self.values[name].copy_(value)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Swap the averaged weights into the model inside the ``with`` block."""
        self.swap(model)
        try:
            yield
        finally:
            self.swap(model)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        for name, value in saved_tensors(model).items():
            own = value.clone()
            value.copy_(self.values[name])
            self.values[name].copy_(own)


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name, not detached or copied."""
    return dict(model.state_dict(keep_vars=True))
