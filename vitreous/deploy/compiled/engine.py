"""Inductor as an engine: every block of the model compiled, everything around the blocks as it was.

Blocks that differ in their weights alone are compiled once, so that a ViT of any depth costs one compilation. What was
compiled is kept on disk (``packages.py``); the next start only loads it.

float32 leaves matrix products to the BLAS library, and weights where they are. bfloat16 packs weights for Inductor's
own products, which reach AMX even where oneDNN's do not survive; there attention is written as two such products.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch._C._aoti import AOTIModelPackageLoader as Loader

from vitreous.deploy.compiled.packages import Package, Piece
from vitreous.deploy.engine import Tell, Unfit, sharing_copy
from vitreous.deploy.shortcuts import Shortened
from vitreous.layers.attention import Attend
from vitreous.layers.layout import AnyLayout
from vitreous.machine import bf16_is_safe, cpp_compiler
from vitreous.models.base import Model


class Compiled(nn.Module):
    """The model with compiled blocks, for any batch of images of the sizes that it was prepared for."""

    def __init__(self, skeleton: nn.Module, sizes: set[tuple[int, int]]) -> None:
        super().__init__()
        self.skeleton = skeleton
        self.sizes = sizes

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        if tuple(images.shape[2:]) not in self.sizes:
            known = ", ".join(f"{height}×{width}" for height, width in sorted(self.sizes))
            size = "×".join(map(str, images.shape[2:]))
            raise ValueError(f"compiled for images of {known} pixels, got {size}; prepare it with such an example too")
        return self.skeleton(images)


@dataclass(frozen=True)
class Use:
    """What a block is given in a forward pass: a tensor, and plain values."""

    block: nn.Module
    x: Tensor
    rest: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def kind(self) -> str:
        """The same for any number of images."""
        return f"{tuple(self.x.shape[1:])} {self.rest} {self.options}"

    def piece(self, dtype: torch.dtype, outside_calls: bool) -> Piece:
        block = self.block if dtype is torch.float32 else copy.deepcopy(self.block).to(dtype)
        if not outside_calls:
            seams = [part for part in block.modules() if isinstance(part, Attend)]
            put_in_place(block, {seam: ProductAttend(seam) for seam in seams})
        return Piece(block, self.rest, self.options, dtype)


class CompiledBlock(nn.Module):
    """Stands in a block's place. For each of its uses, which differ by the shape of the image, something that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, tuple[Piece, Loader]] = {}  # the piece keeps the weights alive

    def forward(self, x: Tensor, *rest: Any, **options: Any) -> Tensor:
        _, loader = self.runs[Use(self, x, rest, options).kind]
        return loader.run([x.contiguous()])[0]


class ProductAttend(nn.Module):
    """What :class:`Attend` computes, as two products and a softmax: no fused kernel, which would be oneDNN's."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def forward(
        self,
        q: Float[Tensor, "*b n k"],
        k: Float[Tensor, "*b m k"],
        v: Float[Tensor, "*b m v"],
        *,
        bias: Float[Tensor, ...] | None = None,
        mask: Bool[Tensor, ...] | None = None,
        layout: AnyLayout | None = None,
    ) -> Float[Tensor, "*b n v"]:
        logits = (q * self.attend.scale(q) @ k.transpose(-2, -1)).float()
        if bias is not None:
            logits = logits + bias
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        weights = logits.softmax(-1)
        if mask is not None:
            weights = torch.where(mask.any(-1, keepdim=True), weights, 0.0)
        return weights.to(v.dtype) @ v


@torch.inference_mode(False)  # whose tensors cannot be traced
@torch.no_grad()
def prepare(
    model: Model | Shortened,
    example: Tensor | Sequence[Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    cache: Path,
    tell: Tell = lambda words: None,
) -> Compiled:
    """Compile the model's blocks for images like the examples, or load what ``cache`` keeps of an earlier start.

    The model is left as it is and its weights are shared, except in bfloat16. ``tell`` hears of progress.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise Unfit(f"blocks are compiled in float32 or bfloat16, not in {dtype}")
    if {(weight.device.type, weight.dtype) for weight in model.parameters()} != {("cpu", torch.float32)}:
        raise Unfit("only a float32 model on the CPU is compiled; move it there with model.cpu().float()")
    examples = [example] if isinstance(example, Tensor) else list(example)
    skeleton = sharing_copy(model).eval()
    outside_calls = dtype is torch.float32 or bf16_is_safe()
    uses = [use for images in examples for use in watch(skeleton, images)]
    packages = [Package(use.piece(dtype, outside_calls), use.x, outside_calls) for use in uses]
    stand_ins = {use.block: CompiledBlock() for use in uses}
    for use, package, loader in zip(uses, packages, load_all(packages, cache, tell), strict=True):
        stand_ins[use.block].runs[use.kind] = package.piece, loader
    put_in_place(skeleton, stand_ins)
    return Compiled(skeleton, {(images.shape[2], images.shape[3]) for images in examples})


def watch(model: Model | Shortened, images: Tensor) -> list[Use]:
    """What every block is given in a forward pass. One image is enough to know; for a tracer there are at least two,
    since it takes a batch of one for a constant.
    """
    batch, uses = max(2, len(images)), list[Use]()

    def note(block: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        x, *rest = given
        uses.append(Use(block, x.repeat(batch, *[1] * (x.ndim - 1)), tuple(rest), options))

    hooks = [block.register_forward_pre_hook(note, with_kwargs=True) for block in dict.fromkeys(model.blocks)]
    model(images[:1])
    for hook in hooks:
        hook.remove()
    if not uses:
        raise Unfit(f"{type(model).__name__} has no blocks to compile")
    return uses


def check_cpp_compiler() -> None:
    if cpp_compiler() is None:
        raise Unfit("no C++ compiler found; install g++ or clang++, or name another one in CXX")


def load_all(packages: Sequence[Package], cache: Path, tell: Tell) -> list[Loader]:
    """What runs each package; what ``cache`` does not hold, or no longer whole, is compiled first, every kind once."""
    loaders = [package.load(cache) for package in packages]
    missing = {package.name: package for package, loader in zip(packages, loaders, strict=True) if loader is None}
    if missing:
        check_cpp_compiler()
        with writable(cache, tell) as folder:
            make_all(list(missing.values()), folder, tell)
            pairs = zip(packages, loaders, strict=True)
            loaders = [package.load(folder) if loader is None else loader for package, loader in pairs]
    found = [loader for loader in loaders if loader is not None]
    if len(found) < len(packages):
        raise Unfit("a block was compiled, but torch cannot load it")
    return found


def make_all(packages: Sequence[Package], folder: Path, tell: Tell) -> None:
    """Several at a time, except where kernels are chosen by trial: there the others would be in the way."""

    def make(number: int) -> None:
        tell(f"compiling kind {number + 1} of {len(packages)} kinds of block")
        packages[number].make(folder)

    at_once = 1 if packages[0].piece.frozen else torch.get_num_threads()
    with ThreadPoolExecutor(max_workers=at_once) as workers:
        list(workers.map(make, range(len(packages))))


@contextmanager
def writable(cache: Path, tell: Tell) -> Iterator[Path]:
    """The folder, or one for this time only if nothing can be written there."""
    with tempfile.TemporaryDirectory() as instead:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache):
                folder = cache
        except OSError as error:
            tell(f"the compiled blocks are not kept: {cache} cannot be written ({error.strerror})")
            folder = Path(instead)
        yield folder


def put_in_place(model: nn.Module, stand_ins: Mapping[nn.Module, nn.Module]) -> None:
    for owner in list(model.modules()):
        for name, child in owner.named_children():
            if child in stand_ins:
                setattr(owner, name, stand_ins[child])
