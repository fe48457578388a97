"""Structural re-parameterization: several branches in training, one convolution for inference.

    norm(W ∗ x) = s W ∗ x + β − s μ,   s = γ / √(σ² + ε)        BatchNorm in evaluation folds into the convolution
    Σᵢ (Wᵢ ∗ x + bᵢ) = (Σᵢ Wᵢ) ∗ x + Σᵢ bᵢ                        small kernels zero-padded; the identity is δ ∗ x

``vt.fold(model)`` returns a copy with every such module folded, which computes the same in evaluation mode. "RepVGG",
Ding et al. 2021 (arXiv 2101.03697); "MobileOne", Vasu et al. 2022 (2206.04040); a large kernel in parallel with a small
one: "RepLKNet", Ding et al. 2022 (2203.06717); :class:`RepMixer`: "FastViT", Vasu et al. 2023 (2303.14189).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.cells import check_odd
from vitreous.layers.norm import MapScale


class ConvParameters(NamedTuple):
    """Weight and bias of one convolution."""

    weight: Float[Tensor, "d c k k"]
    bias: Float[Tensor, " d"]


class Foldable(nn.Module, ABC):
    """A module that is equivalent to a single convolution in evaluation mode; :meth:`fold` returns it."""

    stride: int
    groups: int

    @abstractmethod
    def conv_parameters(self) -> ConvParameters:
        """Compute the weight and bias of the equivalent convolution."""

    @torch.no_grad()
    def fold(self) -> nn.Conv2d:
        weight, bias = self.conv_parameters()
        dim_out, dim_in, kernel, _ = weight.shape
        options: dict[str, Any] = {"stride": self.stride, "padding": kernel // 2, "groups": self.groups}
        conv = nn.Conv2d(dim_in * self.groups, dim_out, kernel, **options, device="meta")  # meta: no random draws
        trainable = any(parameter.requires_grad for parameter in self.parameters())
        conv.weight = nn.Parameter(weight, requires_grad=trainable)
        conv.bias = nn.Parameter(bias, requires_grad=trainable)
        return conv


class ConvNorm(nn.Module):
    """norm(conv(x)) without bias, padded by half a kernel, with ⌈side / stride⌉ output cells.

    For 1×1 kernels the stride is applied by slicing: with a strided 1×1 convolution torch 2.15 crashes on some CPUs in
    the backward pass of a channels-last input with three channels.
    """

    def __init__(self, dim_in: int, dim_out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.skip = stride if kernel == 1 else 1
        options: dict[str, Any] = {"stride": stride // self.skip, "padding": kernel // 2, "groups": groups}
        self.conv = nn.Conv2d(dim_in, dim_out, check_odd("kernel", kernel), **options, bias=False)
        self.norm = nn.BatchNorm2d(dim_out)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        return self.norm(self.conv(x[..., :: self.skip, :: self.skip]))


class RepConv(Foldable):
    """y = Σₖ norm(convₖ(x)) + norm(x): one branch per kernel size and, with ``identity``, a BatchNorm branch."""

    def __init__(
        self,
        dim_in: int,
        dim_out: int,
        kernels: Sequence[int],
        *,
        stride: int = 1,
        groups: int = 1,
        identity: bool = False,
    ) -> None:
        super().__init__()
        if not kernels:
            raise ValueError("kernels must have at least one size, got none")
        if identity and (stride > 1 or dim_in != dim_out):
            raise ValueError(f"identity needs stride 1 and equal widths, got {dim_in} → {dim_out} with stride {stride}")
        self.stride, self.groups, self.kernel = stride, groups, max(kernels)
        self.branches = nn.ModuleList(
            ConvNorm(dim_in, dim_out, kernel, stride=stride, groups=groups) for kernel in kernels
        )
        self.identity = nn.BatchNorm2d(dim_in) if identity else None

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        first, *others = (branch(x) for branch in self.branches)
        if self.identity is not None:
            others.append(self.identity(x))
        return sum(others, first)

    def conv_parameters(self) -> ConvParameters:
        parts = [fuse_norm(pad_kernel(branch.conv.weight, self.kernel), branch.norm) for branch in self.convolutions()]
        if self.identity is not None:
            parts.append(fuse_norm(identity_kernel(parts[0].weight), self.identity))
        return ConvParameters(*(torch.stack(tensors).sum(0) for tensors in zip(*parts, strict=True)))

    def convolutions(self) -> Iterable[ConvNorm]:
        return (branch for branch in self.branches if isinstance(branch, ConvNorm))


def mobileone_conv(
    dim_in: int, dim_out: int, kernel: int, *, stride: int = 1, groups: int = 1, branches: int = 1
) -> RepConv:
    """Create a MobileOne convolution: k×k branches, a 1×1 branch, and an identity branch if the shape is kept."""
    kernels = (kernel,) * branches + ((1,) if kernel > 1 else ())
    keeps_shape = dim_in == dim_out and stride == 1
    return RepConv(dim_in, dim_out, kernels, stride=stride, groups=groups, identity=keeps_shape)


class RepMixer(Foldable):
    """RepMixer (FastViT), x + γ (conv(x) − norm(x)): folds, with its residual, into one depthwise convolution."""

    stride = 1

    def __init__(self, dim: int, kernel: int = 3, *, layer_scale: float = 1e-5) -> None:
        super().__init__()
        self.groups = dim
        self.conv = mobileone_conv(dim, dim, kernel, groups=dim)
        self.norm = nn.BatchNorm2d(dim)
        self.scale = MapScale(dim, layer_scale)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return x + self.scale(self.conv(x) - self.norm(x))

    def conv_parameters(self) -> ConvParameters:
        conv = self.conv.conv_parameters()
        unit = identity_kernel(conv.weight)
        norm = fuse_norm(unit, self.norm)
        weight, bias = conv.weight - norm.weight, conv.bias - norm.bias
        return ConvParameters(unit + self.scale.gamma[:, None, None, None] * weight, self.scale.gamma * bias)


class ConvPosition(Foldable):
    """Conditional position encoding, x + conv(x) with a depthwise convolution; its zero padding marks the borders.

    "Conditional Positional Encodings for Vision Transformers", Chu et al. 2021 (arXiv 2102.10882).
    """

    stride = 1

    def __init__(self, dim: int, kernel: int = 7) -> None:
        super().__init__()
        self.groups = dim
        self.conv = nn.Conv2d(dim, dim, check_odd("kernel", kernel), padding=kernel // 2, groups=dim)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return x + self.conv(x)

    def conv_parameters(self) -> ConvParameters:
        assert self.conv.bias is not None
        return ConvParameters(identity_kernel(self.conv.weight) + self.conv.weight, self.conv.bias.clone())


def fuse_norm(weight: Float[Tensor, "d c k k"], norm: nn.BatchNorm2d) -> ConvParameters:
    """Fold BatchNorm, with its running statistics, into the preceding convolution without bias."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return ConvParameters(weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale)


def pad_kernel(weight: Float[Tensor, "d c k k"], kernel: int) -> Float[Tensor, "d c l l"]:
    border = (kernel - weight.shape[-1]) // 2
    return F.pad(weight, (border,) * 4)


def identity_kernel(like: Float[Tensor, "d c k k"]) -> Float[Tensor, "d c k k"]:
    """Create the kernel of the identity, for any number of groups."""
    unit, middle = torch.zeros_like(like), like.shape[-1] // 2
    channels = torch.arange(len(like), device=like.device)
    unit[channels, channels % like.shape[1], middle, middle] = 1
    return unit


def fold_(module: nn.Module) -> int:
    """Replace every foldable submodule by its convolution, in place; return how many there were."""
    count = 0
    for name, child in list(module.named_children()):
        if isinstance(child, Foldable):
            setattr(module, name, child.fold())
            count += 1
        else:
            count += fold_(child)
    return count
