"""Inverted residual block (MobileNetV2): pointwise expansion, depthwise convolution, pointwise projection.

"MobileNetV2: Inverted Residuals and Linear Bottlenecks", Sandler et al. 2018 (arXiv 1801.04381). The pre-normalized
variant with squeeze-and-excitation is in ``layers/mbconv.py``.
"""

from __future__ import annotations

from collections import OrderedDict

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.drop import DropPath
from vitreous.layers.mbconv import ACTIVATIONS, Parts


class InvertedResidual(nn.Module):
    """Inverted residual, x + norm(W₂ · act(norm(depthwise(act(norm(W₁ · x)))))).

    Without the shortcut if the width changes or the stride is above 1.
    """

    def __init__(
        self,
        dim_in: int,
        dim_out: int,
        *,
        stride: int = 1,
        expand_ratio: float = 4.0,
        act: str = "silu",
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = round(dim_in * expand_ratio)
        self.has_shortcut = stride == 1 and dim_in == dim_out
        self.expand = conv_norm(dim_in, hidden, 1, act=act)
        self.depthwise = conv_norm(hidden, hidden, 3, stride=stride, groups=hidden, act=act)
        self.project = conv_norm(hidden, dim_out, 1, act=None)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        branch = self.project(self.depthwise(self.expand(x)))
        return x + self.drop_path(branch) if self.has_shortcut else branch


def conv_norm(
    dim_in: int, dim_out: int, kernel_size: int, *, stride: int = 1, groups: int = 1, act: str | None = "silu"
) -> nn.Sequential:
    """Create act(norm(conv(x))) with ⌈side / stride⌉ output cells; ``act=None`` omits the activation."""
    conv = nn.Conv2d(dim_in, dim_out, kernel_size, stride, padding=kernel_size // 2, groups=groups, bias=False)
    parts: Parts = [("conv", conv), ("norm", nn.BatchNorm2d(dim_out))]
    if act is not None:
        parts += [("act", ACTIVATIONS[act]())]
    return nn.Sequential(OrderedDict(parts))
