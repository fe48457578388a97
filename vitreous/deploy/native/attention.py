"""Scaled dot-product attention with both matrix products in int16 and the softmax in float32.

    logits ≈ scale · step_q · step_k · Σ int(q) · int(k) + bias          one step each per head
    out ≈ step_v / Σ weights · Σ int(softmax(logits)) · int(v)

Queries and keys are quantized to about 13 bits, values to 12 and the weights of a query to at most 16, so that no sum
overflows 32 bits; the result is nearly exact.
"""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitreous.deploy.native.linear import output_buffer, thread_buffer
from vitreous.layers.attention import Attend
from vitreous.layers.layout import AnyLayout

MAX_KEYS = 2**14  # beyond that the quantized weights of a query have too few bits


class Strides(ctypes.Structure):
    """Mirrors ``Strides`` in attention.c."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_long) for name in ("batch", "head", "row")))

    @classmethod
    def of(cls, x: Float[Tensor, "b h n k"] | None) -> Strides:
        return cls() if x is None else cls(x.data_ptr(), *x.stride()[:3])


class AttentionArgs(ctypes.Structure):
    """Mirrors ``AttentionArgs`` in attention.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("batch", "heads", "queries", "keys", "width", "depth")),
        *((name, Strides) for name in ("q", "k", "v", "bias", "out")),
        ("scale", ctypes.c_float),
    )


class NativeAttend(nn.Module):
    """:class:`Attend` on the native kernel, for inference.

    Inputs that the kernel does not support (not 4-D, empty, or more than ``MAX_KEYS`` keys) go to the wrapped
    ``attend``. With ``reuse_output`` the result lives in a per-thread buffer that the next such module overwrites.
    """

    def __init__(self, attend: Attend, library: ctypes.CDLL, *, reuse_output: bool = False) -> None:
        super().__init__()
        self.attend, self.library, self.reuse_output = attend, library, reuse_output

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
        if q.ndim != 4 or 0 in (*q.shape, *v.shape) or v.shape[2] > MAX_KEYS:
            return self.attend(q, k, v, bias=bias, mask=mask)
        (batch, heads, queries, width), (keys, depth) = q.shape, v.shape[2:]
        q, k, v = (contiguous_rows(x) for x in (q, k.expand(batch, heads, -1, -1), v.expand(batch, heads, -1, -1)))
        bias = additive_bias(bias, mask)
        if bias is not None:
            bias = contiguous_rows(bias.expand(batch, heads, queries, keys))
        # (b, n, h, v) in memory, so that joining the heads copies nothing
        out = output_buffer((batch, queries, heads, depth), "attention" if self.reuse_output else None).transpose(1, 2)
        strides = (Strides.of(x) for x in (q, k, v, bias, out))
        args = AttentionArgs(batch, heads, queries, keys, width, depth, *strides, self.attend.scale(q))
        workspace = thread_buffer(self.library.attention_workspace_bytes(ctypes.byref(args)))
        self.library.attention(ctypes.byref(args), ctypes.c_void_p(workspace.data_ptr()))
        return out


def contiguous_rows(x: Float[Tensor, "b h n k"]) -> Float[Tensor, "b h n k"]:
    """Convert to float32 with a stride of 1 along the last axis; other strides stay as they are."""
    x = x.float()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def additive_bias(bias: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Merge a boolean mask (True: may attend) into the bias as −∞."""
    if mask is None:
        return bias
    bias = torch.zeros(mask.shape) if bias is None else bias
    return bias.masked_fill(~mask, -torch.inf)
