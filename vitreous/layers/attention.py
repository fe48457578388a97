"""Scaled dot-product attention, and multi-head self- and cross-attention built on it.

    weights = softmax(q kᵀ / (τ √k) + bias, masked)        output = weights v

:class:`Attend` is the only caller of PyTorch's fused attention, which never materializes the weights. It is an
:class:`AttentionOp`: recording (``explain/record.py``) replaces it by a wrapper that computes the weights explicitly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitreous.layers.layout import AnyLayout, Layout
from vitreous.layers.mixer import Mixer, MixerContext, check_heads
from vitreous.layers.position import Grid, RelativeBias, Rotary
from vitreous.layers.tokens import Tokens


class AttentionOp(nn.Module, ABC):
    """The attention op of a mixer: queries, keys and values in, weighted sums of values out; no parameters.

    ``forward(q, k, v, layout=…)`` is the fast path. :meth:`logits`, :meth:`weights` and :meth:`mix` compute the same
    in separate steps, with the same options (bias, mask, …), so that recording can replace the op and expose them.
    """

    drop_rate: float = 0.0

    @abstractmethod
    def logits(self, *q_and_k: Any, **options: Any) -> Tensor:
        """Compute the attention logits, the input of the softmax."""

    @abstractmethod
    def weights(self, *q_and_k: Any, **options: Any) -> Tensor:
        """Compute the attention weights, before dropout; each row sums to 1."""

    def mix(self, weights: Tensor, k: Tensor, v: Tensor, *_: Any, **options: Any) -> Tensor:
        """Sum the values with the given weights."""
        return weights.to(v.dtype) @ v


class Attend(AttentionOp):
    """Scaled dot-product attention, softmax(q kᵀ / (τ √k) + bias) v, by PyTorch's fused kernels.

    Args:
        temperature: τ; towards 0 the best key takes all, towards ∞ the values are averaged.
        drop_rate: Dropout on the attention weights, in training only.
        scaled: Divide by √k; turn off for queries and keys that are already scaled.
    """

    def __init__(self, *, temperature: float = 1.0, drop_rate: float = 0.0, scaled: bool = True) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature
        self.drop_rate = drop_rate
        self.scaled = scaled

    def forward(
        self,
        q: Float[Tensor, "*b n k"],
        k: Float[Tensor, "*b m k"],
        v: Float[Tensor, "*b m v"],
        *,
        bias: Float[Tensor, ...] | None = None,
        mask: Bool[Tensor, ...] | None = None,
        layout: AnyLayout | None = None,
    ) -> Float[Tensor, "*b n v"]:
        """``mask`` is True where a query may attend to a key; a query whose keys are all masked gets zeros."""
        if bias is not None and mask is not None:
            bias = bias.masked_fill(~mask, -math.inf)
        attn_mask = bias if bias is not None else mask
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            # with fewer axes than q no fused kernel would be chosen
            attn_mask=None if attn_mask is None else attn_mask[(None,) * (q.ndim - attn_mask.ndim)],
            dropout_p=self.drop_rate if self.training else 0.0,
            scale=self.scale(q),
        )

    def scale(self, q: Tensor) -> float:
        return 1.0 / (self.temperature * (math.sqrt(q.shape[-1]) if self.scaled else 1.0))

    def logits(
        self,
        q: Float[Tensor, "*b n k"],
        k: Float[Tensor, "*b m k"],
        *,
        bias: Float[Tensor, ...] | None = None,
        mask: Bool[Tensor, ...] | None = None,
    ) -> Float[Tensor, "*b n m"]:
        """Compute the logits in float32 or better, as the fused kernels do: in half precision the products overflow."""
        precise = torch.promote_types(q.dtype, torch.float32)
        logits = q.to(precise) * self.scale(q) @ k.to(precise).transpose(-2, -1)
        if bias is not None:
            logits = logits + bias
        return logits if mask is None else logits.masked_fill(~mask, -math.inf)

    def weights(
        self,
        q: Float[Tensor, "*b n k"],
        k: Float[Tensor, "*b m k"],
        *,
        bias: Float[Tensor, ...] | None = None,
        mask: Bool[Tensor, ...] | None = None,
    ) -> Float[Tensor, "*b n m"]:
        """Compute the attention weights that :meth:`forward` uses implicitly."""
        logits = self.logits(q, k, bias=bias, mask=mask)
        if mask is None:
            return logits.softmax(-1)
        return torch.where((logits > -math.inf).any(-1, keepdim=True), logits.softmax(-1), 0.0)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, drop_rate={self.drop_rate}"


class SelfAttention(nn.Module):
    """Multi-head self-attention, with relative position bias or rotary embedding if ``context.position`` selects it."""

    def __init__(self, context: MixerContext, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.num_heads = context.num_heads
        is_relative = context.position == "relative"
        relative = RelativeBias(context.grid, context.num_heads, context.num_prefix) if is_relative else None
        self.qkv = context.make_qkv()
        self.relative = relative  # initialized before qkv (order of random draws), registered after it
        self.rotary = Rotary(context.head_dim) if context.position == "rope" else None
        self.attend = Attend(temperature=temperature, drop_rate=context.attention_drop_rate)
        self.proj = nn.Linear(context.dim, context.dim, bias=context.proj_bias)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        return self.drop(self.proj(self.attend_heads(x, grid, num_prefix)))

    def attend_heads(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int) -> Float[Tensor, "b n d"]:
        """Compute all heads and concatenate their outputs, without the output projection."""
        q, k, v = self.project_qkv(x)
        if self.rotary is not None:
            q, k = self.rotary(q, grid, num_prefix), self.rotary(k, grid, num_prefix)
        bias = self.relative(grid, num_prefix) if self.relative is not None else None
        tokens = Tokens(grid, num_prefix)
        out = self.attend(q, k, v, bias=bias, layout=Layout(tokens, tokens))
        return rearrange(out, "b h n k -> b n (h k)")

    def project_qkv(self, x: Float[Tensor, "b n d"]) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens to queries, keys and values, (b, h, n, k) each.

        They are views of the fused projection, so that the backward pass concatenates their gradients in one copy.
        """
        qkv = rearrange(self.qkv(x), "b n (three h k) -> b n three h k", three=3, h=self.num_heads)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        return q, k, v


@dataclass(frozen=True, kw_only=True)
class FullAttention(Mixer):
    """Options of full self-attention: every token attends to every token, at a cost quadratic in their number."""

    name: ClassVar[str] = "attention"
    no_token_drop: ClassVar[str] = ""
    no_position: ClassVar[Mapping[str, str]] = {}
    temperature: float = 1.0

    def make(self, context: MixerContext) -> SelfAttention:
        return SelfAttention(context, temperature=self.temperature)


class CrossAttention(nn.Module):
    """Multi-head cross-attention: queries from ``x``, keys and values from ``context``.

    Pass ``layout`` to ``forward`` so that recording can map the weights onto the image, for example
    ``Layout(Tokens(None, 100, "queries"), Tokens(grid))`` for object queries over the cells of an image. Without it
    neither side has positions.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        context_dim: int | None = None,
        qkv_bias: bool = True,
        temperature: float = 1.0,
        drop_rate: float = 0.0,
        attention_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(context_dim or dim, 2 * dim, bias=qkv_bias)
        self.attend = Attend(temperature=temperature, drop_rate=attention_drop_rate)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m e"],
        *,
        mask: Bool[Tensor, ...] | None = None,
        layout: Layout | None = None,
    ) -> Float[Tensor, "b n d"]:
        q = rearrange(self.q(x), "b n (h k) -> b h n k", h=self.num_heads)
        k, v = rearrange(self.kv(context), "b m (two h k) -> two b h m k", two=2, h=self.num_heads)
        out = self.attend(q, k, v, mask=mask, layout=layout or unplaced_layout(x, context))
        return self.drop(self.proj(rearrange(out, "b h n k -> b n (h k)")))


def unplaced_layout(x: Float[Tensor, "b n d"], context: Float[Tensor, "b m e"]) -> Layout:
    """Describe tokens without known positions."""
    queries = Tokens(None, x.shape[1], "queries")
    return Layout(queries, queries if context is x else Tokens(None, context.shape[1], "context"))
