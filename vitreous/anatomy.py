"""What a model is made of, part by part in the order of computation: seen by watching one forward pass.

Nothing here knows a family. A part is a block, or whatever holds no block: a stem, a step between stages, a norm, the
classifier. Blocks of a stage that keep the map's shape are one row.
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
class Part:
    """Some modules that follow each other and do the same."""

    home: str  # where they stand in the model, as in stages.0.blocks
    titles: tuple[str, ...]  # of each module, as in ("window attention", "shifted window attention")
    is_block: bool
    dim: int  # channels that come out
    grid: Grid | None  # cells that come out, or None where it is tokens without a grid or a vector
    num_tokens: int  # that come out
    stride: int | None  # height of a cell in pixels
    parameters: int
    macs: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """The titles without repetition, in the order they first come in."""
        return tuple(dict.fromkeys(self.titles))


@dataclass(frozen=True)
class Anatomy:
    cost: Cost
    parts: tuple[Part, ...]

    @property
    def other_parameters(self) -> int:
        """Of no part: tokens and the like."""
        return self.cost.parameters - sum(part.parameters for part in self.parts)


def anatomy(model: str | Config, **overrides: Any) -> Anatomy:
    """The parts of a model, by name or config, with shapes at its native size.

    >>> [part.grid for part in anatomy("swin_tiny").parts if part.is_block]
    """
    found = cost(model, **overrides)
    blocks = set(found.twin.blocks)
    parts = []
    for name, module, args, output in watch(found.twin, found.image_size):
        dim, grid, num_tokens = shape(output, args)
        parts.append(
            Part(
                home=name.rpartition(".")[0] if module in blocks else name,
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
    return Anatomy(found, tuple(merge(parts)))


def units(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """Blocks, and what holds none, with their names."""
    blocks = set(model.blocks)

    def walk(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if module in blocks or blocks.isdisjoint(module.modules()):
            yield name, module
        else:
            for child_name, child in module.named_children():
                yield from walk(f"{name}.{child_name}" if name else child_name, child)

    return walk("", model)


def watch(model: Model, image_size: Size) -> list[tuple[str, nn.Module, tuple[Any, ...], Tensor]]:
    """What every unit with parameters was given and gave, in the order of their calls."""
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


def shape(output: Tensor, args: tuple[Any, ...]) -> tuple[int, Grid | None, int]:
    """Channels, grid if there is one, and tokens of what a unit gave."""
    if output.ndim == 4:
        return output.shape[1], (output.shape[2], output.shape[3]), output.shape[2] * output.shape[3]
    grid = next((arg for arg in args[1:] if isinstance(arg, tuple)), None)
    return output.shape[-1], grid, output.shape[1] if output.ndim == 3 else 1


def stride(found: Cost, grid: Grid) -> int:
    """The model's own where it leaves that many cells; another where a block has a grid of its own inside."""
    height = found.image_size[0]
    own = (stride for stride, _ in found.twin.strides if -(-height // stride) == grid[0])
    return next(own, round(height / grid[0]))


def title(module: nn.Module, name: str) -> str:
    """What it is, in words: a block goes by its mixer, what has no kind of its own by its name in the model."""
    mixer = getattr(module, "mixer", None)
    if isinstance(module, nn.Sequential):
        return name.rpartition(".")[2]
    if not isinstance(mixer, nn.Module):
        return spoken(type(module).__name__)
    shifted = "shifted " if getattr(mixer, "shifted", False) else ""
    return shifted + spoken(type(mixer).__name__).removeprefix("shifted ")


def spoken(name: str) -> str:
    """WindowAttention → window attention; MBConv → MB conv."""
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z]+|[A-Z]+|\d+d?", name)
    return " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in words)


def merge(parts: list[Part]) -> Iterator[Part]:
    """Blocks of one home and one shape, which follow each other, as one part."""
    held: Part | None = None
    for part in parts:
        if held and part.is_block and (part.home, part.dim, part.grid) == (held.home, held.dim, held.grid):
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
