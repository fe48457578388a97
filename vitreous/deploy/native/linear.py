"""Quantized and float32 linear layers, with the norm, activation and residual around them fused into one call.

    W ≈ scale · int(W)                symmetric, one scale per output channel
    x ≈ low + step · int(x)           asymmetric, one (low, step) per token (dynamic) or per layer (static, calibrated)
    y = scale · (step · Σ int(x) · int(W) + low · Σ int(W)) + b

=======  =================================================================================================
int16    weights of 11 bits, activations of as many bits as cannot overflow a sum; nearly exact
int8     weights and activations of 8 bits; of 7 with AVX2 alone, whose instructions accumulate in 16 bits
bf16     no quantization: bfloat16 in AMX tiles
fp32     no quantization: equal to torch up to the order of summation
=======  =================================================================================================

Norms, softmax and GELU are computed in float32.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.engine import EngineUnavailable, Precision
from vitreous.layers.patch import patchify

#: In the order of the enum in products.h.
PRECISIONS: tuple[Precision, ...] = ("int16", "int8", "bf16", "fp32")

PANEL = 16
MAX_WEIGHT_INT16 = 1023
NUMBERS_PER_GROUP = {"int16": 2, "int8": 4, "bf16": 2, "fp32": 1}
STORAGE_DTYPE = {"int16": torch.int16, "int8": torch.int8, "bf16": torch.bfloat16, "fp32": torch.float32}

_buffers = threading.local()  # shared by all layers of a thread, which run one after the other


class Layer(ctypes.Structure):
    """Mirrors ``Layer`` in linear.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("kind", "inputs", "outputs", "groups", "has_gelu")),
        *((name, ctypes.c_void_p) for name in ("weights", "scale", "weight_sum", "bias", "norm_weight", "norm_bias")),
        *((name, ctypes.c_float) for name in ("epsilon", "max_activation", "low", "step")),
    )


class Tokens(ctypes.Structure):
    """Mirrors ``Tokens`` in linear.c."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("count", "per_image", "precise_tokens"))


class NativeLinear(nn.Module):
    """Inference version of an ``nn.Linear`` in one of the ``PRECISIONS``: y = scale · act(norm(x) Wᵀ + b) + residual.

    Args:
        linear: The layer whose weights are quantized and packed; it is not kept.
        precision: int8, int16, bf16 or fp32.
        library: The compiled kernels.
        gelu: Apply exact GELU to the output.
        fixed: (low, step) of the activations for static int8 quantization; by default a range per token.
        precise_tokens: In int8, the number of leading tokens of an image that keep up to 16 bits.
        norm: A LayerNorm to apply to the input.
        scale: A factor per output channel (LayerScale), folded into weights and bias.
        reuse_output: Return a per-thread buffer that the next such layer overwrites.
    """

    def __init__(
        self,
        linear: nn.Linear,
        precision: Precision,
        library: ctypes.CDLL,
        *,
        gelu: bool = False,
        fixed: tuple[float, float] | None = None,
        precise_tokens: int = 0,
        norm: nn.LayerNorm | None = None,
        scale: Float[Tensor, " e"] | None = None,
        reuse_output: bool = False,
    ) -> None:
        super().__init__()
        self.precision, self.library, self.gelu, self.reuse_output = precision, library, gelu, reuse_output
        self.precise_tokens = precise_tokens if precision == "int8" else 0
        self.in_features, self.out_features = linear.in_features, linear.out_features
        rules = packing(library)
        max_activation: int = rules.max_activation
        weight = linear.weight.detach().float()
        bias = weight.new_zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()
        if scale is not None:
            weight, bias = weight * scale.detach().float()[:, None], bias * scale.detach().float()
        if not bool(weight.isfinite().all()):
            raise EngineUnavailable("some of its weights are not finite")
        if precision == "int8" and self.in_features * rules.max_activation * rules.max_weight >= 2**31:
            raise EngineUnavailable(f"int8 sums over {self.in_features} inputs overflow 32 bits")
        integers, weight_scale = quantize_weight(weight, precision, rules.max_weight)
        if precision == "int16":
            largest_sum = int(integers.abs().sum(dim=1, dtype=torch.float64).max())
            max_activation = min(32767, (2**31 - 1) // max(1, largest_sum))
        packed = pack(integers, precision, rules)
        padding = len(packed) * PANEL - self.out_features
        per_channel = [F.pad(row, (0, padding)) for row in (weight_scale, integers.sum(1), bias)]
        self.tensors = [packed, *per_channel, *norm_parameters(norm)]  # kept alive: the kernel holds only addresses
        self.layer = Layer(
            PRECISIONS.index(precision),
            self.in_features,
            self.out_features,
            packed.shape[1],
            int(gelu),
            *(None if tensor is None else tensor.data_ptr() for tensor in self.tensors),
            0.0 if norm is None else norm.eps,
            max_activation,
            *(fixed or (0.0, 0.0)),
        )

    def forward(
        self, x: Float[Tensor, "... d"], residual: Float[Tensor, "... e"] | None = None
    ) -> Float[Tensor, "... e"]:
        """Compute the layer and add ``residual`` to its output, if given."""
        return run_kernel(self.library.linear, self.library.linear_workspace_bytes, [self], x, residual)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.kind}" + (", gelu" if self.gelu else "")


class NativeMlp(nn.Module):
    """Two linear layers in one kernel call; the hidden activations stay in the cache."""

    def __init__(self, fc1: NativeLinear, fc2: NativeLinear) -> None:
        super().__init__()
        self.fc1, self.fc2 = fc1, fc2

    def forward(
        self, x: Float[Tensor, "... d"], residual: Float[Tensor, "... e"] | None = None
    ) -> Float[Tensor, "... e"]:
        library = self.fc1.library
        return run_kernel(library.mlp, library.mlp_workspace_bytes, [self.fc1, self.fc2], x, residual)


class NativePatchEmbed(nn.Module):
    """Patch embedding as a native linear layer over flattened patches; returns a map like :class:`PatchMatmul`."""

    def __init__(self, linear: NativeLinear, patch_size: tuple[int, ...]) -> None:
        super().__init__()
        self.linear, self.patch_size = linear, patch_size

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        height, width = self.patch_size
        tokens = self.linear(patchify(images, (height, width)))
        return rearrange(tokens, "b (y x) d -> b d y x", y=images.shape[2] // height)


def run_kernel(
    kernel: Callable[..., None],
    workspace_bytes: Callable[..., int],
    layers: list[NativeLinear],
    x: Float[Tensor, "... d"],
    residual: Float[Tensor, "... e"] | None,
) -> Float[Tensor, "... e"]:
    in_features, out_features = layers[0].in_features, layers[-1].out_features
    if x.shape[-1] != in_features:
        raise ValueError(f"the layer expects {in_features} features per token, got {x.shape[-1]}")
    rows = x.float().reshape(-1, in_features).contiguous()
    y = output_buffer((*x.shape[:-1], out_features), "tokens" if layers[-1].reuse_output else None)
    if residual is not None:
        residual = residual.float().expand(y.shape).contiguous()
    if not len(rows):
        return y
    structs = [ctypes.byref(layer.layer) for layer in layers]
    per_image = math.prod(x.shape[1:-1])
    precise_tokens = min(per_image, max(layer.precise_tokens for layer in layers))
    tokens = ctypes.byref(Tokens(len(rows), per_image, precise_tokens))
    workspace = thread_buffer(workspace_bytes(*structs, tokens))
    kernel(*structs, pointer(rows), tokens, pointer(residual), pointer(y), pointer(workspace))
    return y


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def norm_parameters(norm: nn.LayerNorm | None) -> tuple[Tensor | None, Tensor | None]:
    """Copy weight and bias of a norm as float32; ones and zeros where it has none."""
    if norm is None:
        return None, None
    (width,) = norm.normalized_shape
    weight, bias = torch.ones(width, dtype=torch.float32), torch.zeros(width, dtype=torch.float32)
    for target, source in ((weight, norm.weight), (bias, norm.bias)):
        if source is not None:
            target.copy_(source.detach())
    return weight, bias


class Packing(NamedTuple):
    """Padding of packed weights, to multiples of ``columns`` and ``groups``, and the largest integers in int8."""

    columns: int
    groups: int
    max_weight: int
    max_activation: int


def packing(library: ctypes.CDLL) -> Packing:
    numbers = [ctypes.c_long() for _ in Packing._fields]
    library.packing(*(ctypes.byref(number) for number in numbers))
    return Packing(*(number.value for number in numbers))


def quantize_weight(
    weight: Float[Tensor, "e d"], precision: Precision, max_weight: int
) -> tuple[Float[Tensor, "e d"], Float[Tensor, " e"]]:
    """Quantize symmetrically to integers with one scale per output channel; bf16 and fp32 stay, with scale 1."""
    if STORAGE_DTYPE[precision].is_floating_point:
        return weight, weight.new_ones(len(weight))
    scale = weight.abs().amax(dim=1).clamp(min=1e-30) / (MAX_WEIGHT_INT16 if precision == "int16" else max_weight)
    return (weight / scale[:, None]).round(), scale


def pack(integers: Float[Tensor, "e d"], precision: Precision, rules: Packing) -> Tensor:
    """Pack weights into panels of 16 columns: (panels, groups, 16, numbers per group); see products.h."""
    per_group = NUMBERS_PER_GROUP[precision]
    outputs, inputs = integers.shape
    padded = F.pad(integers, (0, -inputs % (per_group * rules.groups), 0, -outputs % rules.columns)).to(
        STORAGE_DTYPE[precision]
    )
    return padded.view(-1, PANEL, padded.shape[1] // per_group, per_group).transpose(1, 2).contiguous()


def output_buffer(shape: tuple[int, ...], name: str | None) -> Tensor:
    """Allocate float32 memory, or reuse the thread's buffer ``name``, which avoids page faults on fresh memory."""
    if name is None:
        return torch.empty(shape, dtype=torch.float32, device="cpu")
    size = math.prod(shape)
    return thread_buffer(4 * size, name)[: 4 * size].view(torch.float32).view(shape)


def thread_buffer(num_bytes: int, name: str = "workspace") -> Tensor:
    """Return the calling thread's buffer of that name, grown to at least ``num_bytes``."""
    buffer: Tensor | None = getattr(_buffers, name, None)
    if buffer is None or len(buffer) < num_bytes:
        buffer = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        setattr(_buffers, name, buffer)
    return buffer
