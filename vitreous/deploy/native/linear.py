"""A linear layer in small integers, or in float32 with what stands around it in the same call.

    W ≈ scale · integers          one scale per output, its largest weight being the largest integer
    x ≈ low + step · integers     one low and step per token, found as it passes (dynamic) or fixed before (static)
    y = scale · (step · Σ integers · integers + low · Σ integers of W) + b

=======  =================================================================================================
int16    weights of 11 bits, activations of as many as no sum can overflow: nearly exact
int8     weights and activations of 8 bits, with AVX2 alone of 7 (its instructions add in 16 bits)
bf16     no integers: bfloat16 in AMX tiles, where there are any
fp32     no integers: what torch computes, but for the order of the sums
=======  =================================================================================================

Everything around the product (norms, softmax, GELU) stays in float32.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.engine import Unfit
from vitreous.layers.patch import patchify

Kind = Literal["int16", "int8", "bf16", "fp32"]
KINDS: tuple[Kind, ...] = ("int16", "int8", "bf16", "fp32")

PANEL = 16
LARGEST_WEIGHT_16 = 1023
PER_GROUP = {"int16": 2, "int8": 4, "bf16": 2, "fp32": 1}
STORED = {"int16": torch.int16, "int8": torch.int8, "bf16": torch.bfloat16, "fp32": torch.float32}

_own = threading.local()  # what a thread's layers work in, one after the other


class Layer(ctypes.Structure):
    """As in linear.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("kind", "inputs", "outputs", "groups", "gelu")),
        *((name, ctypes.c_void_p) for name in ("weights", "scale", "total", "bias", "norm_weight", "norm_bias")),
        *((name, ctypes.c_float) for name in ("epsilon", "top", "low", "step")),
    )


class Tokens(ctypes.Structure):
    """As in linear.c."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("count", "of_each", "fine"))


class NativeLinear(nn.Module):
    """``linear`` for inference; ``fixed`` is the (low, step) of every activation.

    In 8 bits the first ``fine`` tokens of an image have up to 16: two rows of integers each, upper and lower half.
    What stands around it may be part of it: a ``norm`` before it, GELU behind it, and numbers that the output is
    multiplied by (``scale``), before it is added to something else. A layer that ``lends`` its output wants it back:
    the next such layer of the thread writes over it.
    """

    def __init__(
        self,
        linear: nn.Linear,
        kind: Kind,
        library: ctypes.CDLL,
        *,
        gelu: bool = False,
        fixed: tuple[float, float] | None = None,
        fine: int = 0,
        norm: nn.LayerNorm | None = None,
        scale: Float[Tensor, " e"] | None = None,
        lends: bool = False,
    ) -> None:
        super().__init__()
        self.kind, self.library, self.gelu, self.lends = kind, library, gelu, lends
        self.fine = fine if kind == "int8" else 0
        self.in_features, self.out_features = linear.in_features, linear.out_features
        columns, groups, largest, top = rules(library)
        weight = linear.weight.detach().float()
        bias = weight.new_zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()
        if scale is not None:
            weight, bias = weight * scale.detach().float()[:, None], bias * scale.detach().float()
        if not bool(weight.isfinite().all()):
            raise Unfit("some of its weights are no finite numbers")
        if kind == "int8" and self.in_features * top * largest >= 2**31:
            raise Unfit(f"in 8 bits the sums of {self.in_features} inputs overflow")
        integers, one = as_integers(weight, kind, largest)
        if kind == "int16":
            top = min(32767, (2**31 - 1) // max(1, int(integers.abs().sum(dim=1, dtype=torch.float64).max())))
        packed = pack(integers, kind, columns, groups)
        missing = len(packed) * PANEL - self.out_features
        per_column = [F.pad(row, (0, missing)) for row in (one, integers.sum(1), bias)]
        self.kept = [packed, *per_column, *norm_numbers(norm)]  # the kernel knows only their addresses
        self.layer = Layer(
            KINDS.index(kind),
            self.in_features,
            self.out_features,
            packed.shape[1],
            int(gelu),
            *(None if tensor is None else tensor.data_ptr() for tensor in self.kept),
            0.0 if norm is None else norm.eps,
            top,
            *(fixed or (0.0, 0.0)),
        )

    def forward(self, x: Float[Tensor, "... d"], more: Float[Tensor, "... e"] | None = None) -> Float[Tensor, "... e"]:
        """The output, added to ``more`` if that is given."""
        return run(self.library.linear, self.library.room, [self], x, more)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.kind}" + (", gelu" if self.gelu else "")


class NativeMlp(nn.Module):
    """Two layers in one call; what is between them never leaves the cache."""

    def __init__(self, fc1: NativeLinear, fc2: NativeLinear) -> None:
        super().__init__()
        self.fc1, self.fc2 = fc1, fc2

    def forward(self, x: Float[Tensor, "... d"], more: Float[Tensor, "... e"] | None = None) -> Float[Tensor, "... e"]:
        library = self.fc1.library
        return run(library.mlp, library.mlp_room, [self.fc1, self.fc2], x, more)


class NativePatches(nn.Module):
    """Patches of an image, each as one row for ``linear``; a map, as :class:`PatchProduct` gives it."""

    def __init__(self, linear: NativeLinear, patch_size: tuple[int, ...]) -> None:
        super().__init__()
        self.linear, self.patch_size = linear, patch_size

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        height, width = self.patch_size
        tokens = self.linear(patchify(images, (height, width)))
        return rearrange(tokens, "b (y x) d -> b d y x", y=images.shape[2] // height)


def run(
    kernel: Callable[..., None],
    room_for: Callable[..., int],
    layers: list[NativeLinear],
    x: Float[Tensor, "... d"],
    more: Float[Tensor, "... e"] | None,
) -> Float[Tensor, "... e"]:
    width, height = layers[0].in_features, layers[-1].out_features
    if x.shape[-1] != width:
        raise ValueError(f"the layer takes {width} numbers per token, got {x.shape[-1]}")
    rows = x.float().reshape(-1, width).contiguous()
    y = output((*x.shape[:-1], height), "tokens" if layers[-1].lends else None)
    if more is not None:
        more = more.float().expand(y.shape).contiguous()
    if not len(rows):
        return y
    numbers = [ctypes.byref(layer.layer) for layer in layers]
    of_each = math.prod(x.shape[1:-1])
    tokens = ctypes.byref(Tokens(len(rows), of_each, min(of_each, max(layer.fine for layer in layers))))
    room = working_room(room_for(*numbers, tokens))
    added = ctypes.c_void_p(None if more is None else more.data_ptr())
    at, to, work = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (rows, y, room))
    kernel(*numbers, at, tokens, added, to, work)
    return y


def norm_numbers(norm: nn.LayerNorm | None) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias of a norm, as floats; ones and zeros where it has none."""
    if norm is None:
        return None, None
    (width,) = norm.normalized_shape
    weight, bias = torch.ones(width, dtype=torch.float32), torch.zeros(width, dtype=torch.float32)
    for own, given in ((weight, norm.weight), (bias, norm.bias)):
        if given is not None:
            own.copy_(given.detach())
    return weight, bias


def rules(library: ctypes.CDLL) -> tuple[int, int, int, int]:
    """What columns and groups must be multiples of; the largest weight and activation in 8 bits."""
    numbers = [ctypes.c_long() for _ in range(4)]
    library.rules(*(ctypes.byref(number) for number in numbers))
    columns, groups, weight, activation = (number.value for number in numbers)
    return columns, groups, weight, activation


def as_integers(
    weight: Float[Tensor, "e d"], kind: Kind, largest: int
) -> tuple[Float[Tensor, "e d"], Float[Tensor, " e"]]:
    """Whole numbers, and what 1 stands for in each row; floats are left as they are."""
    if STORED[kind].is_floating_point:
        return weight, weight.new_ones(len(weight))
    scale = weight.abs().amax(dim=1).clamp(min=1e-30) / (LARGEST_WEIGHT_16 if kind == "int16" else largest)
    return (weight / scale[:, None]).round(), scale


def pack(integers: Float[Tensor, "e d"], kind: Kind, columns: int, groups: int) -> Tensor:
    """Panels of 16 columns, group after group: (panels, groups, 16, numbers in a group)."""
    per_group = PER_GROUP[kind]
    outputs, inputs = integers.shape
    padded = F.pad(integers, (0, -inputs % (per_group * groups), 0, -outputs % columns)).to(STORED[kind])
    return padded.view(-1, PANEL, padded.shape[1] // per_group, per_group).transpose(1, 2).contiguous()


def output(shape: tuple[int, ...], lent: str | None) -> Tensor:
    """Memory for floats: new, or the thread's own of that name, which saves the kernel from clearing fresh pages."""
    if lent is None:
        return torch.empty(shape, dtype=torch.float32, device="cpu")
    size = math.prod(shape)
    return working_room(4 * size, lent)[: 4 * size].view(torch.float32).view(shape)


def working_room(size: int, name: str = "room") -> Tensor:
    """At least so many bytes that belong to this thread, the same ones every time."""
    room: Tensor | None = getattr(_own, name, None)
    if room is None or len(room) < size:
        room = torch.empty(size, dtype=torch.uint8, device="cpu")
        setattr(_own, name, room)
    return room
