"""From a model's layers to the kernel's, as a choice of bits says."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from vitreous.deploy.native.attention import NativeAttend
from vitreous.deploy.native.linear import Kind, NativeLinear, NativeMlp, NativePatches
from vitreous.layers.attention import Attend
from vitreous.layers.patch import PatchProduct

Range = tuple[float, float]  # the low and the step of activations


@dataclass(frozen=True)
class Choice:
    """What every linear layer runs in, by its name; in 8 bits the first ``fine`` tokens have up to twice as many.

    Patches run in ``exact`` bits: they are little work, and what is lost there is lost for all that follows.
    """

    kinds: Mapping[str, Kind]
    more: Kind = "int16"
    fine: int = 0

    @property
    def exact(self) -> Kind:
        return "fp32" if "fp32" in self.kinds.values() else self.more

    def count(self, kind: Kind) -> int:
        return list(self.kinds.values()).count(kind)


@dataclass
class Converter:
    """Makes the kernel's layers out of those of ``model``; ``done`` are the names of those it was asked for."""

    model: nn.Module
    choice: Choice
    kernel: ctypes.CDLL
    own_attention: bool
    ranges: Mapping[str, Range] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    def wants(self, *names: str) -> bool:
        return self.choice.kinds.keys() >= set(names)

    def linear(
        self,
        name: str,
        *,
        gelu: bool = False,
        norm: nn.LayerNorm | None = None,
        scale: Tensor | None = None,
        lends: bool = False,
    ) -> NativeLinear:
        linear = self.model.get_submodule(name)
        if not isinstance(linear, nn.Linear):
            raise ValueError(f"{name} is a {type(linear).__name__}; only linear layers can be converted")
        self.done.add(name)
        kind = self.choice.kinds[name]
        return NativeLinear(
            linear,
            kind,
            self.kernel,
            gelu=gelu,
            fixed=self.ranges.get(name) if kind == "int8" else None,
            fine=self.choice.fine,
            norm=norm,
            scale=scale,
            lends=lends,
        )

    def mlp(self, fc1: str, fc2: str, *, norm: nn.LayerNorm, scale: Tensor | None) -> NativeMlp:
        return NativeMlp(self.linear(fc1, gelu=True, norm=norm), self.linear(fc2, scale=scale))

    def patches(self, conv: PatchProduct) -> nn.Module:
        linear = nn.utils.skip_init(nn.Linear, conv.weight[0].numel(), conv.out_channels, bias=conv.bias is not None)
        linear.weight.data, linear.bias = conv.weight.detach().flatten(1), conv.bias
        return NativePatches(NativeLinear(linear, self.choice.exact, self.kernel), conv.kernel_size)

    def attend(self, attend: Attend, *, lends: bool = False) -> nn.Module:
        return NativeAttend(attend, self.kernel, lends=lends) if self.own_attention else attend
