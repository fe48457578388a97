"""Compare the structure of two models: modules, their settings and tensor shapes, but not tensor values.

Ignored are training mode, dropout and similar rates, devices, precision, and wrappers for compilation or activation
checkpointing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import Tensor, nn

#: Name components inserted by torch.compile and torch's checkpoint_wrapper.
WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module)(?:\.|$)")
#: Attributes to ignore: settings that matter only in training, replaced methods, and torch's own attributes.
IGNORED = re.compile(r"training|p|(.*_)?rate|momentum|forward|_.*")


def check_reproducible(model: nn.Module, rebuilt: nn.Module) -> None:
    """Refuse a model that differs from ``rebuilt``, the model built from its config and edits."""
    found = next(differences(model, rebuilt), None)
    if found is not None:
        raise ValueError(
            f"cannot save this {type(rebuilt).__name__}, because its config and edits do not describe it: {found}; "
            "change a model with model.edit(...), reset_head or a custom config"
        )


def differences(model: nn.Module, rebuilt: nn.Module) -> Iterator[str]:
    """Yield a description of each difference of ``model`` from ``rebuilt``, in module order."""
    own, others = unwrapped_modules(model), unwrapped_modules(rebuilt)
    for path in others | own:
        if path not in own:
            yield f"{path} ({describe_module(others[path])}) is missing"
        elif path not in others:
            yield f"{path} ({describe_module(own[path])}) is unexpected"
        elif type(own[path]) is not type(others[path]):
            yield f"{path or 'the model'} is {describe_module(own[path])}, expected {describe_module(others[path])}"
        else:
            yield from differing_settings(path, own[path], others[path])


def differing_settings(path: str, own: nn.Module, other: nn.Module) -> Iterator[str]:
    """Yield the differences of one module; attributes that ``other`` does not have are ignored."""
    dot = f"{path}." if path else ""
    shapes, expected = tensor_shapes(own), tensor_shapes(other)
    for name in expected | shapes:
        if shapes.get(name) != expected.get(name):
            yield f"{dot}{name} is {shapes.get(name, 'missing')}, expected {expected.get(name, 'missing')}"
    for name in vars(other) | vars(own):
        if IGNORED.fullmatch(name) or not hasattr(other, name):
            continue
        value, reference = getattr(own, name, None), getattr(other, name)
        if is_comparable(value) and is_comparable(reference) and value != reference:
            yield f"{dot}{name} is {format_value(value)}, expected {format_value(reference)}"


def unwrapped_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return all modules by name without wrappers; a wrapped module replaces its wrapper."""
    return {strip_wrappers(path).removesuffix("."): module for path, module in model.named_modules()}


def strip_wrappers(name: str) -> str:
    """Remove the components of wrappers from the name of a module or tensor."""
    return WRAPPERS.sub("", name)


def tensor_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, Tensor | None] = {**module._parameters, **module._buffers}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}


def is_comparable(value: Any) -> bool:
    """Return whether a value can be compared with ``==``: numbers, strings, functions, and lists of these."""
    if isinstance(value, tuple | list):
        return all(is_comparable(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str | FunctionType | BuiltinFunctionType)


def describe_module(module: nn.Module) -> str:
    return f"{type(module).__name__}({module.extra_repr()})"


def format_value(value: Any) -> str:
    return getattr(value, "__qualname__", None) or repr(value)
