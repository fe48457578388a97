"""Convert a model to native kernels: its linear layers, patch embedding and attention; the rest runs in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitreous.deploy.engine import AnyModule, EngineUnavailable, copy_sharing_weights
from vitreous.deploy.native.block import NativeBlock, is_exact_gelu
from vitreous.deploy.native.build import library
from vitreous.deploy.native.convert import Converter, PrecisionPlan, Range
from vitreous.layers.attention import Attend
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import PatchMatmul

#: Levels at which int16 attention beats torch's float32 attention; with AVX2 it is no faster.
NATIVE_ATTENTION_LEVELS = ("amx", "avx512_vnni")


def to_native(model: AnyModule, plan: PrecisionPlan, ranges: Mapping[str, Range] | None = None) -> AnyModule:
    """Return a copy of ``model`` with native kernels; weights that are not converted are shared.

    Args:
        model: A float32 model on the CPU, which is left unchanged.
        plan: The precision of each linear layer; layers that it does not name stay in torch. Attention runs in int16
            unless the plan is float32.
        ranges: (low, step) of a layer's activations for static int8 quantization; by default a range per token.

    Raises:
        EngineUnavailable: If the kernels cannot be compiled, or the CPU or the model lacks what the plan needs.
    """
    level, kernel = library()
    if "bf16" in (*plan.precisions.values(), plan.patch_precision) and level != "amx":
        raise EngineUnavailable("bfloat16 needs AMX tiles, which this CPU does not have")
    if {weight.dtype for weight in model.parameters()} != {torch.float32}:
        raise EngineUnavailable("the kernels take float32 models only; convert with model.float()")
    fast = copy_sharing_weights(model)
    use_native_attention = level in NATIVE_ATTENTION_LEVELS and plan.patch_precision != "fp32"
    converter = Converter(fast, plan, kernel, use_native_attention, ranges or {})
    attends = {name: module for name, module in fast.named_modules() if type(module) is Attend}
    blocks = {name: block for name, block in fast.named_modules() if type(block) is PreNormBlock}
    native = {name: NativeBlock(block, name, converter) for name, block in blocks.items()}
    for name in plan.precisions.keys() - converter.converted:
        parent = fast.get_submodule(name.rpartition(".")[0])
        gelu = isinstance(parent, Mlp) and name.endswith(".fc1") and is_exact_gelu(parent.act)
        set_submodule(fast, name, converter.linear(name, gelu=gelu))
        if gelu:
            parent.act = nn.Identity()
    for name, module in list(fast.named_modules()):
        if type(module) is PatchMatmul:
            set_submodule(fast, name, converter.patches(module))
    for name, attend in attends.items():
        if fast.get_submodule(name) is attend:
            set_submodule(fast, name, converter.attend(attend))
    for name, block in native.items():
        set_submodule(fast, name, block)
    return fast


def set_submodule(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)


@torch.inference_mode()
def linear_layers(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Return the linear layers that run on an example, with the number of multiplications of each."""
    called: dict[str, int] = {}

    def count(name: str, linear: nn.Linear, inputs: tuple[Tensor, ...]) -> None:
        called[name] = called.get(name, 0) + inputs[0].numel() * linear.out_features

    hooks = [
        module.register_forward_pre_hook(lambda module, inputs, name=name: count(name, module, inputs))
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    ]
    try:
        model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return called
