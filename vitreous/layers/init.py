"""Weight initialization, paper by paper. Each ``init_*`` function is meant for ``module.apply``."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


def trunc_normal_(tensor: Tensor, std: float = 0.02) -> Tensor:
    """Draw from a normal distribution with standard deviation ``std``, as DeiT and timm do.

    Their call truncates at ±2 *absolute*, which is 100 standard deviations here, so that it never truncates;
    descriptions of it as "truncated at 2σ" are wrong.
    """
    return nn.init.trunc_normal_(tensor, std=std)


@runtime_checkable
class HasOwnInit(Protocol):
    """A module with its own initialization in every model; ``apply`` reaches it after its children."""

    def init_own(self) -> None: ...


def init_deit(module: nn.Module) -> None:
    """DeiT: linear weights normal with σ = 0.02, biases zero; the patch projection keeps PyTorch's default."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, HasOwnInit):
        module.init_own()


def init_convnext(module: nn.Module) -> None:
    """ConvNeXt: linear and convolution weights normal with σ = 0.02, biases zero."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, HasOwnInit):
        module.init_own()


def init_vit(module: nn.Module) -> None:
    """ViT: linear weights Xavier-uniform, the patch projection LeCun-normal, biases zero."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, HasOwnInit):
        module.init_own()


def init_efficient(module: nn.Module) -> None:
    """EfficientNet: convolution weights normal with variance 2 / fan-out, biases zero."""
    if isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
