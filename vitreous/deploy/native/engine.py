"""A model whose linear layers run in small integers; all the rest, and the model itself, stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitreous.deploy.engine import Model, Unfit, sharing_copy
from vitreous.deploy.native.build import library
from vitreous.deploy.native.linear import Kind, NativeLinear
from vitreous.layers.mlp import Mlp

Range = tuple[float, float]  # the low and the step of activations


def prepare(model: Model, kinds: Mapping[str, Kind], ranges: Mapping[str, Range] | None = None) -> Model:
    """A copy that shares the weights, with the layers named in ``kinds`` in integers.

    ``ranges`` fixes the low and step of a layer's activations, which are otherwise found for every token.
    """
    level, kernel = library()
    if "bf16" in kinds.values() and level != "amx":
        raise Unfit("bfloat16 needs AMX tiles, which this CPU does not have")
    fast = sharing_copy(model)
    for name, kind in kinds.items():
        home, _, attribute = name.rpartition(".")
        parent, linear = fast.get_submodule(home), fast.get_submodule(name)
        if not isinstance(linear, nn.Linear):
            raise ValueError(f"{name} is a {type(linear).__name__}; only linear layers run in integers")
        gelu = isinstance(parent, Mlp) and linear is parent.fc1 and is_exact_gelu(parent.act)
        if gelu:
            parent.act = nn.Identity()
        fixed = ranges.get(name) if ranges and kind == "int8" else None
        setattr(parent, attribute, NativeLinear(linear, kind, kernel, gelu=gelu, fixed=fixed))
    return fast


def is_exact_gelu(act: nn.Module) -> bool:
    return type(act) is nn.GELU and act.approximate == "none"


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
