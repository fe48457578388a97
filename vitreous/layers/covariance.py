"""Cross-covariance attention: channels attend to channels, at a cost linear in the number of tokens.

"XCiT: Cross-Covariance Image Transformers", El-Nouby et al. 2021 (arXiv 2106.09681).

    q̂ = q / ‖q‖,  k̂ = k / ‖k‖                 each channel normalized over all tokens
    outputᵀ = softmax(τ q̂ᵀ k̂) vᵀ              a k × k matrix per head, with a learned τ per head

Every channel of a head becomes a weighted mean of the head's channels, by their cosine similarity over the whole image.
Tokens interact only through these weights, so that the operation is permutation-equivariant. The paper divides by its
temperature; here it is a factor, as in the published weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import Attend
from vitreous.layers.layout import Channels
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.position import Grid


class CrossCovariance(nn.Module):
    """Multi-head cross-covariance attention; prefix tokens are treated like any other."""

    def __init__(self, context: MixerContext) -> None:
        super().__init__()
        self.num_heads = context.num_heads
        self.temperature = nn.Parameter(torch.ones(context.num_heads, 1, 1))
        self.qkv = context.make_qkv()
        self.attend = Attend(scaled=False, drop_rate=context.attention_drop_rate)
        self.proj = nn.Linear(context.dim, context.dim)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        q, k, v = rearrange(self.qkv(x), "b n (three h k) -> three b h k n", three=3, h=self.num_heads)
        q, k = F.normalize(q, dim=-1) * self.temperature, F.normalize(k, dim=-1)
        out = self.attend(q, k, v, layout=Channels(grid, num_prefix))
        return self.drop(self.proj(rearrange(out, "b h k n -> b n (h k)")))


@dataclass(frozen=True, kw_only=True)
class Covariance(Mixer):
    """Options of cross-covariance attention: the channels of a head attend to each other."""

    name: ClassVar[str] = "covariance"
    no_token_drop: ClassVar[str] = ""

    def make(self, context: MixerContext) -> CrossCovariance:
        return CrossCovariance(context)
