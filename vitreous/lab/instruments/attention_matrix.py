"""Attention matrices for analysis: random, constructed and trained."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.lab.instruments.real import deit_tiny, photos, traces
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend


def attention_matrix(
    q: Float[Tensor, "*b n k"],
    k: Float[Tensor, "*b m k"],
    *,
    bias: Float[Tensor, ...] | None = None,
    temperature: float = 1.0,
    scaled: bool = True,
) -> Float[Tensor, "*b n m"]:
    """Compute attention weights with the fused kernel: with one-hot values the output is the weight matrix."""
    one_hot = torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-1], -1)
    attend = Attend(temperature=temperature, scaled=scaled)
    out: Tensor = attend(q, k, one_hot, bias=bias)
    return out


def random_heads(heads: int, tokens: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw independent standard-normal queries and keys, so that the scaled logits have variance 1."""
    draws = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(heads, tokens, width, generator=draws, dtype=torch.float64) for _ in range(2))
    return q, k


def peaked_attention(favorites: Int[Tensor, " n"], strength: float) -> Float[Tensor, "n n"]:
    """Build attention in which query i prefers key ``favorites[i]`` by a logit of ``strength``; 0 is uniform."""
    keys = torch.eye(len(favorites), dtype=torch.float64)
    return attention_matrix(strength * keys[favorites], keys, scaled=False)


def trained_heads(trial: Trial, count: int) -> Iterator[Float[Tensor, "h n n"]]:
    """Yield the attention of all heads of DeiT-Tiny in layer order, one image at a time, in double precision."""
    images, _ = photos(trial, count)
    for trace in traces(deit_tiny(trial).double(), images.double(), size=1):
        yield torch.cat([attention.weights[0] for attention in trace.values()])
