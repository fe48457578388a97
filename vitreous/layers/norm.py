"""LayerNorm is torch's own, (x − μ)/√(σ² + ε)·γ + β, with ε set by each family; here is what goes with it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class ImageNorm(nn.GroupNorm):
    """(x − μ)/√(σ² + ε)·γ + β with μ and σ² over all channels of all tokens: GroupNorm with a single group.

    LayerNorm makes all tokens equally strong; this keeps which are stronger. It is computed as LayerNorm over an image
    because torch wants channels first for GroupNorm, and tokens would be copied there and back.
    """

    def __init__(self, dim: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(1, dim, eps=eps)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        normed = F.layer_norm(x, x.shape[1:], eps=self.eps) * self.weight
        return normed if self.bias is None else normed + self.bias


#: Makes the norm of a block from its width and ``eps``: LayerNorm, or one with options bound by ``partial``.
MakeNorm = Callable[..., nn.LayerNorm | ImageNorm]


class LayerScale(nn.Module):
    """γ ⊙ x with one learned γ per channel that starts small, so that a deep network starts near the identity."""

    def __init__(self, dim: int, initial: float = 1e-5) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(initial)))

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return x * self.gamma


class MapScale(LayerScale):
    """The same for a map, whose channels come before its rows and columns."""

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return x * self.gamma[:, None, None]
