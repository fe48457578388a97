"""Normalization over a whole image, and LayerScale. LayerNorm is PyTorch's, with ε set by each model family."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class ImageNorm(nn.GroupNorm):
    """GroupNorm with a single group: (x − μ)/√(σ² + ε)·γ + β with μ and σ² over all channels of all tokens.

    Unlike LayerNorm it preserves differences in norm between tokens. It is computed by ``F.layer_norm`` over the image,
    since PyTorch's GroupNorm expects channels first, which would copy the tokens twice.
    """

    def __init__(self, dim: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(1, dim, eps=eps)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        normed = F.layer_norm(x, x.shape[1:], eps=self.eps) * self.weight
        return normed if self.bias is None else normed + self.bias


#: Creates a block's norm from its width and ``eps``, such as ``nn.LayerNorm`` or a ``partial`` of it.
MakeNorm = Callable[..., nn.LayerNorm | ImageNorm]


class LayerScale(nn.Module):
    """LayerScale, γ ⊙ x: a learned γ per channel, initially small, so that deep networks start near the identity."""

    def __init__(self, dim: int, initial: float = 1e-5) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(initial)))

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return x * self.gamma


class MapScale(LayerScale):
    """LayerScale for channels-first maps."""

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return x * self.gamma[:, None, None]
