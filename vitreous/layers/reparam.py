"""Several branches while a network learns, one convolution afterwards: structural re-parameterization.

    norm(W ∗ x) = s W ∗ x + β − s μ,   s = γ / √(σ² + ε)        a norm that stands still is part of its convolution
    Σᵢ (Wᵢ ∗ x + bᵢ) = (Σᵢ Wᵢ) ∗ x + Σᵢ bᵢ                        small kernels padded with zeros; x = δ ∗ x

``vt.fold(model)`` gives a copy with every such part in its short form, which computes the same in evaluation mode.
"RepVGG", Ding et al. 2021 (arXiv 2101.03697); "MobileOne", Vasu et al. 2022 (2206.04040); large kernels beside a small
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


class Filter(NamedTuple):
    """What one convolution needs to compute what a part computes."""

    weight: Float[Tensor, "d c k k"]
    bias: Float[Tensor, " d"]


class Foldable(nn.Module, ABC):
    """A part that computes, in evaluation mode, what one convolution could."""

    stride: int
    groups: int

    @abstractmethod
    def filter(self) -> Filter: ...

    @torch.no_grad()
    def fold(self) -> nn.Conv2d:
        weight, bias = self.filter()
        dim_out, dim_in, kernel, _ = weight.shape
        options: dict[str, Any] = {"stride": self.stride, "padding": kernel // 2, "groups": self.groups}
        conv = nn.Conv2d(dim_in * self.groups, dim_out, kernel, **options, device="meta")  # draws no random weights
        learns = any(parameter.requires_grad for parameter in self.parameters())
        conv.weight, conv.bias = nn.Parameter(weight, requires_grad=learns), nn.Parameter(bias, requires_grad=learns)
        return conv


class ConvNorm(nn.Module):
    """norm(conv(x)): without bias, padded by half a kernel, so that ⌈side / stride⌉ cells come out.

    A kernel of 1×1 is given only the cells that its stride lands on. Told to stride itself, torch 2.15 crashes on some
    CPUs in the backward pass when the input has three channels that lie last in memory.
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
    """y = Σₖ norm(convₖ(x)) + norm(x), a branch for each kernel and, with ``identity``, one for the input itself."""

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
            raise ValueError(f"only stride 1 and an equal width keep the input, got {dim_in} → {dim_out} by {stride}")
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

    def filter(self) -> Filter:
        parts = [absorb(widened(branch.conv.weight, self.kernel), branch.norm) for branch in self.convolutions()]
        if self.identity is not None:
            parts.append(absorb(unit_filter(parts[0].weight), self.identity))
        return Filter(*(torch.stack(tensors).sum(0) for tensors in zip(*parts, strict=True)))

    def convolutions(self) -> Iterable[ConvNorm]:
        return (branch for branch in self.branches if isinstance(branch, ConvNorm))


def mobile_conv(
    dim_in: int, dim_out: int, kernel: int, *, stride: int = 1, groups: int = 1, branches: int = 1
) -> RepConv:
    """MobileOne's: some branches of k×k, one of 1×1 that scales, and the input itself where the shape allows it."""
    kernels = (kernel,) * branches + ((1,) if kernel > 1 else ())
    keeps_shape = dim_in == dim_out and stride == 1
    return RepConv(dim_in, dim_out, kernels, stride=stride, groups=groups, identity=keeps_shape)


class RepMixer(Foldable):
    """x + γ (conv(x) − norm(x)), channel by channel: a residual block that folds into one depthwise convolution."""

    stride = 1

    def __init__(self, dim: int, kernel: int = 3, *, layer_scale: float = 1e-5) -> None:
        super().__init__()
        self.groups = dim
        self.conv = mobile_conv(dim, dim, kernel, groups=dim)
        self.norm = nn.BatchNorm2d(dim)
        self.scale = MapScale(dim, layer_scale)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return x + self.scale(self.conv(x) - self.norm(x))

    def filter(self) -> Filter:
        conv = self.conv.filter()
        unit = unit_filter(conv.weight)
        norm = absorb(unit, self.norm)
        weight, bias = conv.weight - norm.weight, conv.bias - norm.bias
        return Filter(unit + self.scale.gamma[:, None, None, None] * weight, self.scale.gamma * bias)


class ConvPosition(Foldable):
    """x + conv(x), depthwise: zeros beyond the border tell a cell where it is ("Conditional Positional Encodings for
    Vision Transformers", Chu et al. 2021, arXiv 2102.10882)."""

    stride = 1

    def __init__(self, dim: int, kernel: int = 7) -> None:
        super().__init__()
        self.groups = dim
        self.conv = nn.Conv2d(dim, dim, check_odd("kernel", kernel), padding=kernel // 2, groups=dim)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return x + self.conv(x)

    def filter(self) -> Filter:
        assert self.conv.bias is not None
        return Filter(unit_filter(self.conv.weight) + self.conv.weight, self.conv.bias.clone())


def absorb(weight: Float[Tensor, "d c k k"], norm: nn.BatchNorm2d) -> Filter:
    """A convolution without bias and the norm behind it as one, with the statistics that the norm has by now."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return Filter(weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale)


def widened(weight: Float[Tensor, "d c k k"], kernel: int) -> Float[Tensor, "d c l l"]:
    border = (kernel - weight.shape[-1]) // 2
    return F.pad(weight, (border,) * 4)


def unit_filter(like: Float[Tensor, "d c k k"]) -> Float[Tensor, "d c k k"]:
    """The filter that leaves a map as it is; with groups a channel is counted within its own."""
    unit, middle = torch.zeros_like(like), like.shape[-1] // 2
    channels = torch.arange(len(like), device=like.device)
    unit[channels, channels % like.shape[1], middle, middle] = 1
    return unit


def fold_(module: nn.Module) -> int:
    """Put a convolution in the place of every foldable part inside a module; says how many there were."""
    count = 0
    for name, child in list(module.named_children()):
        if isinstance(child, Foldable):
            setattr(module, name, child.fold())
            count += 1
        else:
            count += fold_(child)
    return count
