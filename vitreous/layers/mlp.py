"""The channel MLP of a block, plain and gated (SwiGLU), and the StarReLU activation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Mlp(nn.Module):
    """Two-layer MLP, W₂ · act(W₁ x)."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        act: Callable[[], nn.Module] = nn.GELU,
        bias: bool = True,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim, bias=bias)
        self.act = act()
        self.fc2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class GatedMlp(nn.Module):
    """SwiGLU: W₂ · (SiLU(W_g x) ⊙ W_v x); ``fc1`` computes gate and value in one product."""

    def __init__(self, dim: int, hidden_dim: int, *, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden_dim)
        self.act = nn.SiLU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.drop(self.fc2(self.drop(self.act(gate) * value)))


class StarReLU(nn.Module):
    """s · relu(x)² + b with learned scalars s and b, initially 1 and 0; cheaper than GELU.

    "MetaFormer Baselines for Vision", Yu et al. 2022 (arXiv 2210.13452). s = 0.8944 and b = −0.4472 would map standard
    normal inputs to mean 0 and variance 1; like the authors' code, it learns them from 1 and 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return self.scale * x.relu().square() + self.bias
