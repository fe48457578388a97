"""A model whose linear layers run in kernels of our own; all the rest, and the model itself, stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitreous.deploy.engine import AnyModule, Unfit, sharing_copy
from vitreous.deploy.native.block import NativeBlock, is_exact_gelu
from vitreous.deploy.native.build import library
from vitreous.deploy.native.convert import Choice, Converter, Range
from vitreous.layers.attention import Attend
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import PatchProduct

#: Where 16-bit products beat torch's float32 attention: with AVX2 they are no faster.
OWN_ATTENTION = ("amx", "avx512_vnni")


def prepare(model: AnyModule, choice: Choice, ranges: Mapping[str, Range] | None = None) -> AnyModule:
    """A copy that shares the weights, with the layers named in ``choice`` as it says, and attention in integers too,
    unless they are in float32.

    ``ranges`` fixes the low and step of a layer's activations, which are otherwise found for every token.
    """
    level, kernel = library()
    if "bf16" in (*choice.kinds.values(), choice.exact) and level != "amx":
        raise Unfit("bfloat16 needs AMX tiles, which this CPU does not have")
    if {weight.dtype for weight in model.parameters()} != {torch.float32}:
        raise Unfit("its kernels take only a float32 model; make it one with model.float()")
    fast = sharing_copy(model)
    own_attention = level in OWN_ATTENTION and choice.exact != "fp32"
    converter = Converter(fast, choice, kernel, own_attention, ranges or {})
    attends = {name: module for name, module in fast.named_modules() if type(module) is Attend}
    blocks = {name: block for name, block in fast.named_modules() if type(block) is PreNormBlock}
    native = {name: NativeBlock(block, name, converter) for name, block in blocks.items()}
    for name in choice.kinds.keys() - converter.done:
        parent = fast.get_submodule(name.rpartition(".")[0])
        gelu = isinstance(parent, Mlp) and name.endswith(".fc1") and is_exact_gelu(parent.act)
        put(fast, name, converter.linear(name, gelu=gelu))
        if gelu:
            parent.act = nn.Identity()
    for name, module in list(fast.named_modules()):
        if type(module) is PatchProduct:
            put(fast, name, converter.patches(module))
    for name, attend in attends.items():
        if fast.get_submodule(name) is attend:
            put(fast, name, converter.attend(attend))
    for name, block in native.items():
        put(fast, name, block)
    return fast


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    home, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(home), attribute, module)


@torch.inference_mode()
def linear_layers(model: nn.Module, example: Tensor) -> dict[str, int]:
    """The linear layers that are called for an example, with their multiplications."""
    called: dict[str, int] = {}

    def note(name: str, linear: nn.Linear, given: tuple[Tensor, ...]) -> None:
        called[name] = called.get(name, 0) + given[0].numel() * linear.out_features

    hooks = [
        module.register_forward_pre_hook(lambda module, given, name=name: note(name, module, given))
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    ]
    try:
        model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return called
