"""Performer: softmax attention approximated by random features, at a cost linear in the number of tokens.

"Rethinking Attention with Performers", Choromanski et al. 2020 (arXiv 2009.14794).

    φ(x) = exp(W x' − ‖x'‖²/2) / √r,   x' = x / k^¼        W has r random rows: E[φ(q)·φ(k)] = exp(q·k / √k)
    output_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j)    the sums over j are shared by all i

The rows of W are normal vectors, orthogonal within blocks of k rows, which lowers the variance. (Random Fourier
features, cosines in place of the exponential, would give weights that can be negative.) The error falls as 1/√r, but
grows exponentially with the norms of queries and keys. It takes fewer multiplications than full attention from 2r
tokens on.

Where we differ from the paper: it subtracts maxima before the exponential and adds a small constant to φ. Here the same
fraction is computed as two softmaxes, features over tokens and then tokens over features, which neither overflows nor
divides by zero, even in half precision, and needs no constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Generator, Tensor, nn

from vitreous.layers.attention import AttentionOp
from vitreous.layers.layout import AnyLayout, Layout
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.position import Grid
from vitreous.layers.tokens import Tokens


def orthogonal_normal(num_rows: int, dim: int, generator: Generator | None = None) -> Float[Tensor, "r k"]:
    """Draw rows with the marginal distribution of normal vectors, orthogonal within each block of ``dim`` rows."""
    device = None if generator is None else generator.device
    blocks = [
        nn.init.orthogonal_(torch.empty(dim, dim, device=device), generator=generator)
        for _ in range(math.ceil(num_rows / dim))
    ]
    lengths = torch.randn(num_rows, dim, device=device, generator=generator).norm(dim=1, keepdim=True)
    return lengths * torch.cat(blocks)[:num_rows]


class PositiveFeatures(nn.Module):
    """log φ(x) of queries and keys, with the same W for all heads; in float32 or better, since it is exponentiated."""

    directions: Tensor

    def __init__(self, head_dim: int, num_features: int) -> None:
        super().__init__()
        self.register_buffer("directions", orthogonal_normal(num_features, head_dim))

    @torch.no_grad()
    def redraw(self, generator: Generator | None = None) -> None:
        """Redraw the random features, as the paper does periodically during training."""
        num_features, head_dim = self.directions.shape
        self.directions.copy_(orthogonal_normal(num_features, head_dim, generator))

    def forward(self, x: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n r"]:
        num_features, head_dim = self.directions.shape
        precise = torch.promote_types(x.dtype, torch.float32)
        x = x.to(precise) * head_dim**-0.25
        shift = (x.square().sum(-1, keepdim=True) + math.log(num_features)) / 2
        return x @ self.directions.to(precise).T - shift

    def extra_repr(self) -> str:
        return "num_features={}, head_dim={}".format(*self.directions.shape)


class LinearAttend(AttentionOp):
    """Linear attention, Σ_j φ(q)·φ(k_j) v_j / Σ_j φ(q)·φ(k_j), from log φ in two softmaxes.

    With S_r = Σ_j φ_r(k_j), feature r contributes S_r times a weighted mean of the values, so that the fraction is
    softmax_r(log φ(q) + log S) · softmax_j(log φ(k))ᵀ v.
    """

    def forward(
        self,
        q: Float[Tensor, "*b n r"],
        k: Float[Tensor, "*b m r"],
        v: Float[Tensor, "*b m v"],
        *,
        layout: AnyLayout | None = None,
    ) -> Float[Tensor, "*b n v"]:
        total = k.logsumexp(-2, keepdim=True)
        averages = (k - total).exp().to(v.dtype).transpose(-2, -1) @ v
        return (q + total).softmax(-1).to(v.dtype) @ averages

    def logits(self, q: Float[Tensor, "*b n r"], k: Float[Tensor, "*b m r"]) -> Float[Tensor, "*b n m"]:
        """Compute log φ(q)·φ(k); its softmax is the attention weights."""
        return self.weights(q, k).log() + (q + k.logsumexp(-2, keepdim=True)).logsumexp(-1, keepdim=True)

    def weights(self, q: Float[Tensor, "*b n r"], k: Float[Tensor, "*b m r"]) -> Float[Tensor, "*b n m"]:
        """Compute the implicit attention weights, which :meth:`forward` never forms."""
        total = k.logsumexp(-2, keepdim=True)
        return (q + total).softmax(-1) @ (k - total).exp().transpose(-2, -1)


class PerformerAttention(nn.Module):
    """Multi-head attention with positive random features; prefix tokens are treated like any other."""

    def __init__(self, context: MixerContext, *, num_features: int) -> None:
        super().__init__()
        self.num_heads = context.num_heads
        self.qkv = context.make_qkv()
        self.features = PositiveFeatures(context.head_dim, num_features)
        self.attend = LinearAttend()
        self.proj = nn.Linear(context.dim, context.dim)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        q, k, v = rearrange(self.qkv(x), "b n (three h k) -> three b h n k", three=3, h=self.num_heads)
        tokens = Tokens(grid, num_prefix)
        out = self.attend(self.features(q), self.features(k), v, layout=Layout(tokens, tokens))
        return self.drop(self.proj(rearrange(out, "b h n k -> b n (h k)")))


@dataclass(frozen=True, kw_only=True)
class Performer(Mixer):
    """Options of Performer: attention over all tokens, approximated by ``num_features`` random features per head."""

    name: ClassVar[str] = "performer"
    no_token_drop: ClassVar[str] = ""
    num_features: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {self.num_features}")

    def make(self, context: MixerContext) -> PerformerAttention:
        if context.attention_drop_rate:
            raise ValueError(
                "mixer 'performer' does not support attention_drop_rate (it has no attention weights); set it to 0"
            )
        return PerformerAttention(context, num_features=self.num_features)
