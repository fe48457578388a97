"""Compare two models' structures: modules, their settings, and the shapes of their tensors, not the values.

What only training or the machine decides does not count: modes, rates of dropout and its kin, devices, precision,
wrappers that compile or recompute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import Tensor, nn

#: What torch.compile and torch's checkpoint_wrapper put between a module and its name.
WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module)(?:\.|$)")
#: Settings that matter in training alone, methods put over those of the class, and what torch itself keeps in a module.
OUTSIDE = re.compile(r"training|p|(.*_)?rate|momentum|forward|_.*")


def check_described(model: nn.Module, twin: nn.Module) -> None:
    """Refuse a model that differs from ``twin``, which its config and edits have built."""
    found = next(differences(model, twin), None)
    if found is not None:
        raise ValueError(
            f"config and edits do not describe this {type(twin).__name__}, so a file of it could not be read back: "
            f"{found}; make such a change by model.edit(...), reset_head or a config of your own"
        )


def differences(model: nn.Module, twin: nn.Module) -> Iterator[str]:
    """Yield in words what distinguishes ``model`` from ``twin``, in the order of the modules."""
    own, others = modules_of(model), modules_of(twin)
    for path in others | own:
        if path not in own:
            yield f"{path} ({kind(others[path])}) is missing"
        elif path not in others:
            yield f"{path} ({kind(own[path])}) is new"
        elif type(own[path]) is not type(others[path]):
            yield f"{path or 'the model'} is {kind(own[path])} where it should be {kind(others[path])}"
        else:
            yield from settings_changed(path, own[path], others[path])


def settings_changed(path: str, own: nn.Module, other: nn.Module) -> Iterator[str]:
    """Yield what differs in one module; an attribute that ``other`` knows nothing of is a note, and no setting."""
    dot = f"{path}." if path else ""
    shapes, wanted = shapes_of(own), shapes_of(other)
    for name in wanted | shapes:
        if shapes.get(name) != wanted.get(name):
            yield f"{dot}{name} is {shapes.get(name, 'missing')} where it should be {wanted.get(name, 'missing')}"
    for name in vars(other) | vars(own):
        if OUTSIDE.fullmatch(name) or not hasattr(other, name):
            continue
        value, should = getattr(own, name, None), getattr(other, name)
        if is_plain(value) and is_plain(should) and value != should:
            yield f"{dot}{name} is {words(value)} where it should be {words(should)}"


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by its name without wrappers; what is wrapped comes after its wrapper, and so takes its place."""
    return {plain_name(path).removesuffix("."): module for path, module in model.named_modules()}


def plain_name(name: str) -> str:
    """The name of a module or tensor as if nothing were wrapped."""
    return WRAPPERS.sub("", name)


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, Tensor | None] = {**module._parameters, **module._buffers}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}


def is_plain(value: Any) -> bool:
    """Whether a value says by itself what it means: numbers, words, functions, and rows of these."""
    if isinstance(value, tuple | list):
        return all(is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str | FunctionType | BuiltinFunctionType)


def kind(module: nn.Module) -> str:
    return f"{type(module).__name__}({module.extra_repr()})"


def words(value: Any) -> str:
    return getattr(value, "__qualname__", None) or repr(value)
