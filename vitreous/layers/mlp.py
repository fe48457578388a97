"""The channel MLP of a block, plain and gated."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class Mlp(nn.Module):
    """W₂ · GELU(W₁ x); ``approximate`` uses GELU's tanh form."""

    def __init__(self, dim: int, hidden_dim: int, *, approximate: bool = False, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU("tanh" if approximate else "none")
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class GatedMlp(nn.Module):
    """SwiGLU: W₂ · (SiLU(W_g x) ⊙ W_v x); gate and value stand stacked in ``fc1``."""

    def __init__(self, dim: int, hidden_dim: int, *, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden_dim)
        self.act = nn.SiLU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.drop(self.fc2(self.drop(self.act(gate) * value)))
