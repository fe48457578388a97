"""Transformer block: a token mixer and a channel MLP, each in a residual branch.

A mixer is any module ``(tokens, grid, num_prefix) → tokens``.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.drop import DropPath
from vitreous.layers.norm import LayerScale, MakeNorm
from vitreous.layers.position import Grid


class Block(nn.Module):
    """Base of pre-norm and post-norm blocks: their submodules.

    ``layer_scale`` is the initial γ of LayerScale, or None for no LayerScale.
    """

    def __init__(
        self,
        dim: int,
        mixer: nn.Module,
        mlp: nn.Module,
        *,
        norm: MakeNorm = nn.LayerNorm,
        norm_eps: float = 1e-6,
        layer_scale: float | None = None,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = norm(dim, eps=norm_eps)
        self.mixer = mixer
        self.scale1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = norm(dim, eps=norm_eps)
        self.mlp = mlp
        self.scale2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path_rate)


class PreNormBlock(Block):
    """Pre-norm block, x + F(norm(x)): the residual stream is never normalized, so a final norm must follow."""

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        x = x + self.drop_path(self.scale1(self.mixer(self.norm1(x), grid, num_prefix)))
        return x + self.drop_path(self.scale2(self.mlp(self.norm2(x))))


class PostNormBlock(Block):
    """Post-norm block, norm(x + F(x)), as in the original Transformer."""

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        x = self.norm1(x + self.drop_path(self.scale1(self.mixer(x, grid, num_prefix))))
        return self.norm2(x + self.drop_path(self.scale2(self.mlp(x))))
