"""A linear layer in small integers.

    W ≈ scale · integers          one scale per output, its largest weight being the largest integer
    x ≈ low + step · integers     one low and step per token, found as it passes (dynamic) or fixed before (static)
    y = scale · (step · Σ integers · integers + low · Σ integers of W) + b

=======  =================================================================================================
int16    weights of 11 bits, activations of as many as no sum can overflow: nearly exact
int8     weights and activations of 8 bits, with AVX2 alone of 7 (its instructions add in 16 bits)
bf16     no integers: bfloat16 in AMX tiles, where there are any
=======  =================================================================================================

Everything around the product (norms, softmax, GELU) stays in float32.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Kind = Literal["int16", "int8", "bf16"]
KINDS: tuple[Kind, ...] = ("int16", "int8", "bf16")

PANEL = 16
LARGEST_WEIGHT_16 = 1023
PER_GROUP = {"int16": 2, "int8": 4, "bf16": 2}
STORED = {"int16": torch.int16, "int8": torch.int8, "bf16": torch.bfloat16}

_own = threading.local()  # what a thread's layers work in, one after the other


class Layer(ctypes.Structure):
    """As in linear.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("kind", "inputs", "outputs", "groups", "gelu")),
        *((name, ctypes.c_void_p) for name in ("weights", "scale", "total", "bias")),
        *((name, ctypes.c_float) for name in ("top", "low", "step")),
    )


class NativeLinear(nn.Module):
    """``linear`` for inference, with GELU behind it if wanted; ``fixed`` is the (low, step) of every activation."""

    def __init__(
        self,
        linear: nn.Linear,
        kind: Kind,
        library: ctypes.CDLL,
        *,
        gelu: bool = False,
        fixed: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.library, self.gelu = kind, library, gelu
        self.in_features, self.out_features = linear.in_features, linear.out_features
        columns, groups, largest, top = rules(library)
        weight = linear.weight.detach().float()
        integers, scale = as_integers(weight, kind, largest)
        if kind == "int16":
            top = min(32767, (2**31 - 1) // max(1, int(integers.abs().sum(dim=1, dtype=torch.float64).max())))
        bias = torch.zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()
        packed = pack(integers, kind, columns, groups)
        missing = len(packed) * PANEL - self.out_features
        per_column = [F.pad(row, (0, missing)) for row in (scale, integers.sum(1), bias)]
        self.kept = [packed, *per_column]  # the kernel knows only their addresses
        self.layer = Layer(
            KINDS.index(kind),
            self.in_features,
            self.out_features,
            packed.shape[1],
            int(gelu),
            *(tensor.data_ptr() for tensor in self.kept),
            top,
            *(fixed or (0.0, 0.0)),
        )

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... e"]:
        if x.shape[-1] != self.in_features:
            raise ValueError(f"the layer takes {self.in_features} numbers per token, got {x.shape[-1]}")
        rows = x.float().reshape(-1, self.in_features).contiguous()
        y = torch.empty(*x.shape[:-1], self.out_features)
        room = working_room(self.library.room(ctypes.byref(self.layer), ctypes.c_long(len(rows))))
        self.library.linear(
            ctypes.byref(self.layer),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_long(len(rows)),
            ctypes.c_void_p(y.data_ptr()),
            ctypes.c_void_p(room.data_ptr()),
        )
        return y

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.kind}" + (", gelu" if self.gelu else "")


def rules(library: ctypes.CDLL) -> tuple[int, int, int, int]:
    """What columns and groups must be multiples of; the largest weight and activation in 8 bits."""
    numbers = [ctypes.c_long() for _ in range(4)]
    library.rules(*(ctypes.byref(number) for number in numbers))
    columns, groups, weight, activation = (number.value for number in numbers)
    return columns, groups, weight, activation


def as_integers(
    weight: Float[Tensor, "e d"], kind: Kind, largest: int
) -> tuple[Float[Tensor, "e d"], Float[Tensor, " e"]]:
    """Whole numbers, and what 1 stands for in each row; bfloat16 is left as it is."""
    if kind == "bf16":
        return weight, torch.ones(len(weight))
    scale = weight.abs().amax(dim=1).clamp(min=1e-30) / (LARGEST_WEIGHT_16 if kind == "int16" else largest)
    return (weight / scale[:, None]).round(), scale


def pack(integers: Float[Tensor, "e d"], kind: Kind, columns: int, groups: int) -> Tensor:
    """Panels of 16 columns, group after group: (panels, groups, 16, numbers in a group)."""
    per_group = PER_GROUP[kind]
    outputs, inputs = integers.shape
    padded = F.pad(integers, (0, -inputs % (per_group * groups), 0, -outputs % columns)).to(STORED[kind])
    return padded.view(-1, PANEL, padded.shape[1] // per_group, per_group).transpose(1, 2).contiguous()


def working_room(size: int) -> Tensor:
    room = getattr(_own, "room", None)
    if room is None or len(room) < size:
        room = _own.room = torch.empty(size, dtype=torch.uint8)
    return room
