"""Attention with both of its products in 16-bit integers and its softmax in float32.

    logits ≈ scale · step_q · step_k · Σ integers of q · integers of k + bias      step_q per query, step_k per head
    out ≈ step_v / Σ weights · Σ integers of softmax(logits) · integers of v       weights and values: no sum overflows

Queries and keys have about 13 bits, values 12 and the weights of a query up to 16: nearly exact.
"""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitreous.deploy.native.linear import output, working_room
from vitreous.layers.attention import Attend
from vitreous.layers.layout import AnyLayout

MOST_KEYS = 2**14  # with more of them the weights of a query have too few bits


class Place(ctypes.Structure):
    """As in attention.c."""

    _fields_ = (("at", ctypes.c_void_p), *((name, ctypes.c_long) for name in ("batch", "head", "row")))

    @classmethod
    def of(cls, x: Float[Tensor, "b h n k"] | None) -> Place:
        return cls() if x is None else cls(x.data_ptr(), *x.stride()[:3])


class Sizes(ctypes.Structure):
    """As in attention.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("batch", "heads", "queries", "keys", "width", "depth")),
        *((name, Place) for name in ("q", "k", "v", "bias", "out")),
        ("scale", ctypes.c_float),
    )


class NativeAttend(nn.Module):
    """What :class:`Attend` computes, for inference; tensors of other than four axes, and too many keys, are left to it.

    One that ``lends`` its output wants it back: the next such module of the thread writes over it.
    """

    def __init__(self, attend: Attend, library: ctypes.CDLL, *, lends: bool = False) -> None:
        super().__init__()
        self.attend, self.library, self.lends = attend, library, lends

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
        if q.ndim != 4 or 0 in (*q.shape, *v.shape) or v.shape[2] > MOST_KEYS:
            return self.attend(q, k, v, bias=bias, mask=mask)
        (batch, heads, queries, width), (keys, depth) = q.shape, v.shape[2:]
        q, k, v = (together(x) for x in (q, k.expand(batch, heads, -1, -1), v.expand(batch, heads, -1, -1)))
        weigh = one_bias(bias, mask)
        if weigh is not None:
            weigh = together(weigh.expand(batch, heads, queries, keys))
        side_by_side = output((batch, queries, heads, depth), "found" if self.lends else None)
        out = side_by_side.transpose(1, 2)
        places = (Place.of(x) for x in (q, k, v, weigh, out))
        sizes = Sizes(batch, heads, queries, keys, width, depth, *places, self.attend.scale(q))
        room = working_room(self.library.attention_room(ctypes.byref(sizes)))
        self.library.attention(ctypes.byref(sizes), ctypes.c_void_p(room.data_ptr()))
        return out


def together(x: Float[Tensor, "b h n k"]) -> Float[Tensor, "b h n k"]:
    """In float32, the numbers of a row side by side."""
    x = x.float()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def one_bias(bias: Tensor | None, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return bias
    unseen = torch.zeros(mask.shape) if bias is None else bias
    return unseen.masked_fill(~mask, -torch.inf)
