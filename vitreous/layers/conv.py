"""Weight-standardized convolution, and convolution and pooling with TensorFlow's "SAME" padding."""

from __future__ import annotations

import math

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def pad_same(
    x: Float[Tensor, "b c y x"], kernel_size: int, stride: int, *, value: float = 0.0
) -> Float[Tensor, "b c v w"]:
    """Pad as TensorFlow does ("SAME"), to ⌈side / stride⌉ output cells; odd padding goes below and on the right."""
    if kernel_size == 1:
        return x
    down, across = (max(0, kernel_size - stride + -side % stride) for side in (x.shape[2], x.shape[3]))
    return F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2), value=value)


class StdConv2d(nn.Conv2d):
    """Convolution with weight standardization: every filter is normalized to Ŵ = (W − μ) / √(σ² + ε).

    "Weight Standardization", Qiao et al. 2019 (arXiv 1903.10520), meant for GroupNorm, which does not need large
    batches. No bias; padding as in TensorFlow ("SAME"), which depends on the size of the map if the stride is above 1.
    """

    def __init__(self, dim_in: int, dim_out: int, kernel_size: int, *, stride: int = 1, eps: float = 1e-8) -> None:
        padding = "same" if stride == 1 else 0
        super().__init__(dim_in, dim_out, kernel_size, stride=stride, padding=padding, bias=False)
        self.eps = eps

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        if self.stride[0] > 1:
            x = pad_same(x, self.kernel_size[0], self.stride[0])
        return self._conv_forward(x, self.standardized(), None)

    def standardized(self) -> Float[Tensor, "d c k k"]:
        return F.layer_norm(self.weight, list(self.weight.shape[1:]), eps=self.eps)


class MaxPoolSame(nn.Module):
    """Max pooling with TensorFlow's "SAME" padding, by −∞."""

    def __init__(self, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride
        self.pool = nn.MaxPool2d(kernel_size, stride)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c v w"]:
        return self.pool(pad_same(x, self.kernel_size, self.stride, value=-math.inf))
