"""Replace a model's layers by native ones, each in the precision of a plan."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from vitreous.deploy.engine import Precision
from vitreous.deploy.native.attention import NativeAttend
from vitreous.deploy.native.linear import NativeLinear, NativeMlp, NativePatchEmbed
from vitreous.layers.attention import Attend
from vitreous.layers.patch import PatchMatmul

Range = tuple[float, float]  # (low, step) of quantized activations


@dataclass(frozen=True)
class PrecisionPlan:
    """The precision of every linear layer, by name.

    ``higher`` is the precision of layers that are too sensitive for the lowest one. In int8 the first
    ``precise_tokens`` tokens of an image keep up to 16 bits.
    """

    precisions: Mapping[str, Precision]
    higher: Precision = "int16"
    precise_tokens: int = 0

    @property
    def patch_precision(self) -> Precision:
        """Of the patch embedding: never the lowest, since it costs little and its errors reach every later layer."""
        return "fp32" if "fp32" in self.precisions.values() else self.higher

    def count(self, precision: Precision) -> int:
        """Return the number of layers in a precision."""
        return list(self.precisions.values()).count(precision)


@dataclass
class Converter:
    """Build native layers from those of ``model``; ``converted`` collects the names of the linear layers used."""

    model: nn.Module
    plan: PrecisionPlan
    kernel: ctypes.CDLL
    use_native_attention: bool
    ranges: Mapping[str, Range] = field(default_factory=dict)
    converted: set[str] = field(default_factory=set)

    def covers(self, *names: str) -> bool:
        """Whether all these layers are in the plan."""
        return self.plan.precisions.keys() >= set(names)

    def linear(
        self,
        name: str,
        *,
        gelu: bool = False,
        norm: nn.LayerNorm | None = None,
        scale: Tensor | None = None,
        reuse_output: bool = False,
    ) -> NativeLinear:
        linear = self.model.get_submodule(name)
        if not isinstance(linear, nn.Linear):
            raise ValueError(f"only linear layers can be converted, {name} is a {type(linear).__name__}")
        self.converted.add(name)
        precision = self.plan.precisions[name]
        return NativeLinear(
            linear,
            precision,
            self.kernel,
            gelu=gelu,
            fixed=self.ranges.get(name) if precision == "int8" else None,
            precise_tokens=self.plan.precise_tokens,
            norm=norm,
            scale=scale,
            reuse_output=reuse_output,
        )

    def mlp(self, fc1: str, fc2: str, *, norm: nn.LayerNorm, scale: Tensor | None) -> NativeMlp:
        return NativeMlp(self.linear(fc1, gelu=True, norm=norm), self.linear(fc2, scale=scale))

    def patches(self, conv: PatchMatmul) -> nn.Module:
        linear = nn.utils.skip_init(nn.Linear, conv.weight[0].numel(), conv.out_channels, bias=conv.bias is not None)
        linear.weight.data, linear.bias = conv.weight.detach().flatten(1), conv.bias
        return NativePatchEmbed(NativeLinear(linear, self.plan.patch_precision, self.kernel), conv.kernel_size)

    def attend(self, attend: Attend, *, reuse_output: bool = False) -> nn.Module:
        return NativeAttend(attend, self.kernel, reuse_output=reuse_output) if self.use_native_attention else attend
