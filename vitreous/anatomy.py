"""Summarize a model's parts in the order of computation, from the hooks of one forward pass.

This works for every family. A part is a block, or a module without blocks: a stem, a downsampling layer, a norm, the
classifier. Consecutive blocks of a stage with the same output shape are merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.cost import Cost, cost
from vitreous.layers.position import Grid
from vitreous.models.base import Config, Model
from vitreous.spec import Size


@dataclass(frozen=True)
class ModelPart:
    """One module, or consecutive blocks of the same shape."""

    module_path: str  # e.g. stages.0.blocks
    titles: tuple[str, ...]  # one per module, e.g. ("window attention", "shifted window attention")
    is_block: bool
    dim: int  # output channels
    grid: Grid | None  # height and width of the output; None for tokens without a grid, or a vector
    num_tokens: int  # of the output
    stride: int | None  # of the output, in pixels
    parameters: int
    macs: int

    @property
    def distinct_titles(self) -> tuple[str, ...]:
        """The titles without duplicates, in order of first occurrence."""
        return tuple(dict.fromkeys(self.titles))


@dataclass(frozen=True)
class Anatomy:
    """The cost of a model and its parts."""

    cost: Cost
    parts: tuple[ModelPart, ...]

    @property
    def other_parameters(self) -> int:
        """Parameters outside the parts, e.g. the class token."""
        return self.cost.parameters - sum(part.parameters for part in self.parts)


def anatomy(model: str | Config, **overrides: Any) -> Anatomy:
    """Return the parts of a model, given by name or config, with shapes at its native image size.

    >>> [part.grid for part in anatomy("swin_tiny").parts if part.is_block]
    """
    found = cost(model, **overrides)
    blocks = set(found.meta_model.blocks)
    parts = []
    for name, module, args, output in trace_units(found.meta_model, found.image_size):
        dim, grid, num_tokens = output_shape(output, args)
        parts.append(
            ModelPart(
                module_path=name.rpartition(".")[0] if module in blocks else name,
                titles=(title(module, name),),
                is_block=module in blocks,
                dim=dim,
                grid=grid,
                num_tokens=num_tokens,
                stride=grid and stride(found, grid),
                parameters=sum(p.numel() for p in module.parameters()),
                macs=sum(found.module_macs[inner] for inner in module.modules()),
            )
        )
    return Anatomy(found, tuple(merge_blocks(parts)))


def units(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """Yield blocks, and the largest modules without blocks, with their names."""
    blocks = set(model.blocks)

    def walk(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if module in blocks or blocks.isdisjoint(module.modules()):
            yield name, module
        else:
            for child_name, child in module.named_children():
                yield from walk(f"{name}.{child_name}" if name else child_name, child)

    return walk("", model)


def trace_units(model: Model, image_size: Size) -> list[tuple[str, nn.Module, tuple[Any, ...], Tensor]]:
    """Run the model on the meta device; return (name, module, args, output) of each unit with parameters, in order."""
    seen: list[tuple[str, nn.Module, tuple[Any, ...], Tensor]] = []

    def watcher(name: str) -> Any:
        return lambda module, args, output: seen.append((name, module, args, output))

    hooks = [
        module.register_forward_hook(watcher(name))
        for name, module in units(model)
        if next(module.parameters(), None) is not None
    ]
    try:
        with torch.no_grad():
            model(torch.empty(1, model.config.num_channels, *image_size, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def output_shape(output: Tensor, args: tuple[Any, ...]) -> tuple[int, Grid | None, int]:
    """Return channels, grid (None without one) and number of tokens of a unit's output."""
    if output.ndim == 4:
        return output.shape[1], (output.shape[2], output.shape[3]), output.shape[2] * output.shape[3]
    grid = next((arg for arg in args[1:] if isinstance(arg, tuple)), None)
    return output.shape[-1], grid, output.shape[1] if output.ndim == 3 else 1


def stride(found: Cost, grid: Grid) -> int:
    """Return the model's stride with that grid height, or the ratio if a block uses a different grid internally."""
    height = found.image_size[0]
    own = (stride for stride, _ in found.meta_model.strides if -(-height // stride) == grid[0])
    return next(own, round(height / grid[0]))


def title(module: nn.Module, name: str) -> str:
    """Describe a module in words: a block by its mixer, an ``nn.Sequential`` by its attribute name."""
    mixer = getattr(module, "mixer", None)
    if isinstance(module, nn.Sequential):
        return name.rpartition(".")[2]
    if not isinstance(mixer, nn.Module):
        return split_camel_case(type(module).__name__)
    shifted = "shifted " if getattr(mixer, "shifted", False) else ""
    return shifted + split_camel_case(type(mixer).__name__).removeprefix("shifted ")


def split_camel_case(name: str) -> str:
    """Split a class name into words: WindowAttention → window attention, MBConv → MB conv."""
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z]+|[A-Z]+|\d+d?", name)
    return " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in words)


def merge_blocks(parts: list[ModelPart]) -> Iterator[ModelPart]:
    """Merge consecutive blocks with the same path and output shape."""
    held: ModelPart | None = None
    for part in parts:
        if (
            held
            and part.is_block
            and (part.module_path, part.dim, part.grid) == (held.module_path, held.dim, held.grid)
        ):
            held = replace(
                part,
                titles=held.titles + part.titles,
                parameters=held.parameters + part.parameters,
                macs=held.macs + part.macs,
            )
        else:
            if held:
                yield held
            held = part
    if held:
        yield held
