"""MBConv: inverted residual block with squeeze-and-excitation, pre-normalized as in CoAtNet and MaxViT.

"MobileNetV2", Sandler et al. 2018 (arXiv 1801.04381); "Squeeze-and-Excitation Networks", Hu et al. 2017 (1709.01507).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.drop import DropPath
from vitreous.options import Options

Parts = list[tuple[str, nn.Module]]
ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "silu": nn.SiLU, "relu": nn.ReLU}


@dataclass(frozen=True, kw_only=True)
class MBConvOptions(Options):
    """Options of MBConv blocks, which differ from paper to paper."""

    expand_ratio: float = 4.0
    expand_from: Literal["input", "output"] = "output"  # the width that expand_ratio multiplies
    act: Literal["gelu", "silu"] = "gelu"
    act_first: bool = False  # also an activation after the first norm
    halve: Literal["conv", "pool"] = "conv"  # stride 2: in the depthwise convolution, or by average pooling first
    squeeze_ratio: float = 1 / 16  # of the expanded width
    squeeze_first: bool = False  # squeeze-and-excitation before the depthwise convolution's norm
    squeeze_act: Literal["silu", "relu"] = "silu"
    bias: bool = True  # of the last convolution and of the shortcut


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation, x ⊙ σ(W₂ act(W₁ mean(x))): gates channels by global average pooling."""

    def __init__(self, dim: int, squeezed_dim: int, *, act: str = "silu") -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(dim, squeezed_dim, 1)
        self.act = ACTIVATIONS[act]()
        self.fc2 = nn.Conv2d(squeezed_dim, dim, 1)
        self.gate = nn.Sigmoid()

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return x * self.gate(self.fc2(self.act(self.fc1(x.mean((2, 3), keepdim=True)))))


class MBConv(nn.Module):
    """MBConv block, shortcut(x) + W₂ · squeeze(act(norm(depthwise(act(norm(W₁ · norm(x))))))).

    With stride 2 the shortcut is 2×2 average pooling, projected if the width changes; otherwise it is the identity.
    """

    def __init__(
        self, dim_in: int, dim_out: int, *, options: MBConvOptions, stride: int = 1, drop_path_rate: float = 0.0
    ) -> None:
        super().__init__()
        if stride == 1 and dim_in != dim_out:
            raise ValueError(f"a block with stride 1 must keep its width, got {dim_in} → {dim_out}")
        self.branch = make_branch(dim_in, dim_out, options, stride)
        self.shortcut = make_shortcut(dim_in, dim_out, options) if stride == 2 else nn.Identity()
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        return self.shortcut(x) + self.drop_path(self.branch(x))


def make_branch(dim_in: int, dim_out: int, options: MBConvOptions, stride: int) -> nn.Sequential:
    hidden = round((dim_out if options.expand_from == "output" else dim_in) * options.expand_ratio)
    act = ACTIVATIONS[options.act]
    conv_stride = stride if options.halve == "conv" else 1
    parts: Parts = [("norm", nn.BatchNorm2d(dim_in))]
    if options.act_first:
        parts += [("act", act())]
    if conv_stride < stride:
        parts += [("pool", mean_pool_2x2())]
    parts += [
        ("expand", nn.Conv2d(dim_in, hidden, 1, bias=False)),
        ("norm1", nn.BatchNorm2d(hidden)),
        ("act1", act()),
        ("depthwise", nn.Conv2d(hidden, hidden, 3, stride=conv_stride, padding=1, groups=hidden, bias=False)),
    ]
    squeezed = max(1, round(hidden * options.squeeze_ratio))
    weigh: Parts = [("squeeze", SqueezeExcite(hidden, squeezed, act=options.squeeze_act))]
    normalize: Parts = [("norm2", nn.BatchNorm2d(hidden)), ("act2", act())]
    parts += weigh + normalize if options.squeeze_first else normalize + weigh
    return nn.Sequential(OrderedDict([*parts, ("project", nn.Conv2d(hidden, dim_out, 1, bias=options.bias))]))


def make_shortcut(dim_in: int, dim_out: int, options: MBConvOptions) -> nn.Sequential:
    widen = nn.Conv2d(dim_in, dim_out, 1, bias=options.bias) if dim_in != dim_out else nn.Identity()
    return nn.Sequential(OrderedDict([("pool", mean_pool_2x2()), ("widen", widen)]))


def mean_pool_2x2() -> nn.AvgPool2d:
    """Create 2×2 average pooling that rounds odd sides up and excludes padding."""
    return nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)
