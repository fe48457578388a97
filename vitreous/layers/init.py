"""How weights start, paper by paper."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


def trunc_normal_(tensor: Tensor, std: float = 0.02) -> Tensor:
    """Normal with deviation ``std``, as DeiT and timm draw it.

    Their call cuts at ±2 *absolute*, which is 100 deviations here, so it never cuts; texts that speak of
    "resampling outside 2σ" describe another distribution.
    """
    return nn.init.trunc_normal_(tensor, std=std)


@runtime_checkable
class HasOwnInit(Protocol):
    """A part that starts in a way of its own wherever it is put: ``apply`` comes to it after its children."""

    def init_own(self) -> None: ...


def init_deit(module: nn.Module) -> None:
    """DeiT: every matrix normal with deviation 0.02, every bias zero; the patch projection keeps torch's default."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, HasOwnInit):
        module.init_own()


def init_convnext(module: nn.Module) -> None:
    """ConvNeXt: every matrix and every filter normal with deviation 0.02, every bias zero."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, HasOwnInit):
        module.init_own()


def init_vit(module: nn.Module) -> None:
    """ViT: Xavier-uniform matrices, biases zero; the patch projection LeCun-normal."""
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
    """EfficientNet: convolutions normal with variance 2 over the outputs that an input reaches, biases zero."""
    if isinstance(module, nn.Conv2d):
        reach = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / reach))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
