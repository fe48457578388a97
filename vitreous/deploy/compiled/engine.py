"""The Inductor engine: each block of a model is compiled, and the rest runs eagerly.

Blocks that differ only in their weights are compiled once, so a ViT of any depth costs one compilation. Compiled
packages are cached on disk (``packages.py``); the next start only loads them.

In float32 matrix products go to BLAS and the weights are shared. In bfloat16 weights are packed for Inductor's own GEMM
kernels, which use AMX even on machines where oneDNN's kernels crash; attention is then written as two matrix products.
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

from vitreous.deploy.compiled.packages import BoundBlock, Package
from vitreous.deploy.engine import EngineUnavailable, ProgressCallback, copy_sharing_weights
from vitreous.deploy.shortcuts import InferenceModel
from vitreous.layers.attention import Attend
from vitreous.layers.layout import AnyLayout
from vitreous.machine import bf16_is_safe, cpp_compiler
from vitreous.models.base import Model


class Compiled(nn.Module):
    """A model with compiled blocks, for any batch size and for the image sizes that it was compiled for."""

    def __init__(self, skeleton: nn.Module, sizes: set[tuple[int, int]]) -> None:
        super().__init__()
        self.skeleton = skeleton
        self.sizes = sizes

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        if tuple(images.shape[2:]) not in self.sizes:
            known = ", ".join(f"{height}×{width}" for height, width in sorted(self.sizes))
            size = "×".join(map(str, images.shape[2:]))
            raise ValueError(f"compiled for images of {known} pixels, got {size}; add an example of that size")
        return self.skeleton(images)


@dataclass(frozen=True)
class BlockCall:
    """The arguments of a block in a forward pass: one tensor and constants."""

    block: nn.Module
    x: Tensor
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def signature(self) -> str:
        """Shape without the batch size, and the constants."""
        return f"{tuple(self.x.shape[1:])} {self.args} {self.options}"

    def bound(self, dtype: torch.dtype, allow_external_calls: bool) -> BoundBlock:
        block = self.block if dtype is torch.float32 else copy.deepcopy(self.block).to(dtype)
        if not allow_external_calls:
            attends = [part for part in block.modules() if isinstance(part, Attend)]
            replace_modules(block, {attend: MatmulAttend(attend) for attend in attends})
        return BoundBlock(block, self.args, self.options, dtype)


class CompiledBlock(nn.Module):
    """Replacement of a block: one compiled package per call signature, which differs by image size."""

    def __init__(self) -> None:
        super().__init__()
        self.packages: dict[str, tuple[BoundBlock, Loader]] = {}  # the block keeps the weights alive

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        _, loader = self.packages[BlockCall(self, x, args, options).signature]
        return loader.run([x.contiguous()])[0]


class MatmulAttend(nn.Module):
    """:class:`Attend` as two matrix products and a softmax, without the fused kernel, which would call oneDNN."""

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


@torch.inference_mode(False)  # inference tensors cannot be traced
@torch.no_grad()
def compile_blocks(
    model: Model | InferenceModel,
    example: Tensor | Sequence[Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    cache: Path,
    progress: ProgressCallback = lambda words: None,
) -> Compiled:
    """Compile the model's blocks for images of the examples' sizes, or load them from the folder ``cache``.

    The model is left unchanged; the result shares its weights, except in bfloat16.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise EngineUnavailable(f"blocks are compiled in float32 or bfloat16, got {dtype}")
    if {(weight.device.type, weight.dtype) for weight in model.parameters()} != {("cpu", torch.float32)}:
        raise EngineUnavailable("only float32 models on the CPU can be compiled; convert with model.cpu().float()")
    examples = [example] if isinstance(example, Tensor) else list(example)
    skeleton = copy_sharing_weights(model).eval()
    allow_external_calls = dtype is torch.float32 or bf16_is_safe()
    calls = [call for images in examples for call in record_block_calls(skeleton, images)]
    packages = [Package(call.bound(dtype, allow_external_calls), call.x, allow_external_calls) for call in calls]
    replacements = {call.block: CompiledBlock() for call in calls}
    for call, package, loader in zip(calls, packages, load_or_compile(packages, cache, progress), strict=True):
        replacements[call.block].packages[call.signature] = package.bound, loader
    replace_modules(skeleton, replacements)
    return Compiled(skeleton, {(images.shape[2], images.shape[3]) for images in examples})


def record_block_calls(model: Model | InferenceModel, images: Tensor) -> list[BlockCall]:
    """Run one image and record the call of every block, repeated to a batch of at least two.

    The tracer would specialize on a batch of one.
    """
    batch, calls = max(2, len(images)), list[BlockCall]()

    def record(block: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        x, *args = inputs
        calls.append(BlockCall(block, x.repeat(batch, *[1] * (x.ndim - 1)), tuple(args), options))

    hooks = [block.register_forward_pre_hook(record, with_kwargs=True) for block in dict.fromkeys(model.blocks)]
    model(images[:1])
    for hook in hooks:
        hook.remove()
    if not calls:
        raise EngineUnavailable(f"{type(model).__name__} has no blocks to compile")
    return calls


def check_cpp_compiler() -> None:
    if cpp_compiler() is None:
        raise EngineUnavailable("no C++ compiler found; install g++ or clang++, or set CXX")


def load_or_compile(packages: Sequence[Package], cache: Path, progress: ProgressCallback) -> list[Loader]:
    """Return a loader per package; packages missing or damaged in ``cache`` are compiled first, each kind once."""
    loaders = [package.load(cache) for package in packages]
    missing = {package.name: package for package, loader in zip(packages, loaders, strict=True) if loader is None}
    if missing:
        check_cpp_compiler()
        with writable_folder(cache, progress) as folder:
            compile_all(list(missing.values()), folder, progress)
            pairs = zip(packages, loaders, strict=True)
            loaders = [package.load(folder) if loader is None else loader for package, loader in pairs]
    found = [loader for loader in loaders if loader is not None]
    if len(found) < len(packages):
        raise EngineUnavailable("torch cannot load a block that was just compiled")
    return found


def compile_all(packages: Sequence[Package], folder: Path, progress: ProgressCallback) -> None:
    """Compile in parallel, except with autotuning, whose timings parallel work would disturb."""

    def make(number: int) -> None:
        progress(f"compiling block {number + 1} of {len(packages)}")
        packages[number].compile(folder)

    at_once = 1 if packages[0].bound.frozen else torch.get_num_threads()
    with ThreadPoolExecutor(max_workers=at_once) as workers:
        list(workers.map(make, range(len(packages))))


@contextmanager
def writable_folder(cache: Path, progress: ProgressCallback) -> Iterator[Path]:
    """Yield ``cache``, or a temporary folder if it is not writable."""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache):
                folder = cache
        except OSError as error:
            progress(f"compiled blocks are not cached: cannot write to {cache} ({error.strerror})")
            folder = Path(temporary)
        yield folder


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> None:
    for owner in list(model.modules()):
        for name, child in owner.named_children():
            if child in replacements:
                setattr(owner, name, replacements[child])
