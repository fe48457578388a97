"""LayerNorm is torch's own, (x − μ)/√(σ² + ε)·γ + β, with ε set by each family; here is what goes with it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LayerScale(nn.Module):
    """γ ⊙ x with one learned γ per channel that starts small, so that a deep network starts near the identity."""

    def __init__(self, dim: int, initial: float = 1e-5) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(initial)))

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return x * self.gamma
