"""Stochastic depth and token dropping: regularization in training, the identity in evaluation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.options import checked_float


class DropPath(nn.Module):
    """Stochastic depth: x → b·x/(1−p) with b ~ Bernoulli(1−p) per sample, which preserves the expectation."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = checked_float("drop_path_rate", rate)

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        if not self.training or self.rate == 0:
            return x
        keep = x.new_empty(x.shape[:1] + (1,) * (x.ndim - 1)).bernoulli_(1 - self.rate)
        return x * keep / (1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}"


class TokenDrop(nn.Module):
    """Token dropping: keep a random share 1−p of each sample's cells, and all prefix tokens."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = checked_float("token_drop_rate", rate)

    def forward(self, x: Float[Tensor, "b n d"], num_prefix: int = 0) -> Float[Tensor, "b m d"]:
        if not self.training or self.rate == 0:
            return x
        b, n, d = x.shape
        num_cells = n - num_prefix
        num_kept = max(1, round(num_cells * (1 - self.rate)))
        order = torch.rand(b, num_cells, device=x.device).argsort(dim=1)
        kept = order[:, :num_kept].sort(dim=1).values + num_prefix
        cells = x.gather(1, kept[..., None].expand(-1, -1, d))
        return torch.cat([x[:, :num_prefix], cells], dim=1)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}"
