"""The average of the weights over the last steps, which generalizes better than any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """a ← d · a + (1 − d) · w with d = min(decay, (1 + t) / (10 + t)), so that early steps are soon forgotten.

    Statistics of norms are averaged like weights; whole numbers, such as their counters, are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in tensors_of(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        keep = min(self.decay, (1 + step) / (10 + step))
        for name, value in tensors_of(model).items():
            if value.is_floating_point():
                self.values[name].lerp_(value, 1 - keep)
            else:
                self.values[name].copy_(value)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged weights, inside the ``with``."""
        self.swap(model)
        try:
            yield
        finally:
            self.swap(model)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        for name, value in tensors_of(model).items():
            own = value.clone()
            value.copy_(self.values[name])
            self.values[name].copy_(own)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and the buffers that are saved, by name, as they stand in the model."""
    return dict(model.state_dict(keep_vars=True))
