"""Compiled blocks on disk: traced here, compiled by Inductor in a subprocess, loaded by torch's C++ runtime.

Loading needs neither compiler nor tracer and takes milliseconds. A package is named by a digest of all that it depends
on: the block's structure and code, shapes, precision, torch, CPU and number of threads. In float32 it holds no weights:
blocks of one structure share it, and each passes its own weights without a copy. In bfloat16 the weights are included,
packed for the compiler's GEMM kernels.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._aoti import AOTIModelPackageLoader as Loader

from vitreous.deploy.engine import EngineUnavailable
from vitreous.machine import mark_used

COMPILER = Path(__file__).with_name("compile_package.py")
VERSION = 1  # of the package format; part of the digest
TRACING = threading.Lock()  # torch.export traces one program at a time
SHARED = {"aot_inductor.package_constants_in_so": False}
FROZEN = {"freezing": True, "max_autotune": True}
#: Attributes that only affect training, such as dropout probabilities, and torch's private ones.
TRAINING_ONLY = re.compile(r"training|p|(.*_)?rate|_.*")
#: Calls in generated code to torch operators, which may dispatch to oneDNN, and to oneDNN or BLAS directly.
EXTERNAL_CALL = re.compile(
    r"aoti_torch_cpu_\w+|aoti_torch_\w*(?:mkl|call)\w*|extern_kernels\.\w+|torch\.ops\.\w+\.\w+"
    r"|cpublas::\w+|\w*(?:mkldnn|dnnl|cblas|brgemm)_?\w*(?=\s*\()"
    r"|\bat::(?:native::)?\w*(?:mm|matmul|linear|conv\w*|dot_product\w*)(?=\s*\()"
)


class BoundBlock(nn.Module):
    """A block as a function of one float32 tensor, with all other arguments bound."""

    def __init__(self, block: nn.Module, args: tuple[Any, ...], options: dict[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.block = block
        self.args = args
        self.options = options
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x.to(self.dtype), *self.args, **self.options).float()

    @property
    def frozen(self) -> bool:
        return self.dtype is not torch.float32

    def constants(self) -> dict[str, Tensor]:
        """Return parameters and buffers by name, without copying."""
        return {name: tensor.detach() for name, tensor in [*self.named_parameters(), *self.named_buffers()]}


@dataclass(frozen=True)
class Package:
    """A bound block compiled for tensors like ``x`` with any batch size.

    Without ``allow_external_calls`` the compiled code must not call torch operators, oneDNN or BLAS.
    """

    bound: BoundBlock
    x: Tensor
    allow_external_calls: bool = True

    @cached_property
    def name(self) -> str:
        """Name of the file: a digest of all that the package depends on."""
        bound = self.bound
        words = [VERSION, torch.__version__, cpu_capability(), torch.get_num_threads(), bound.dtype,
                 self.allow_external_calls, tuple(self.x.shape[1:]), bound.args, bound.options,
                 *structure(bound.block)]  # fmt: skip
        digest = hashlib.sha256("\n".join(map(str, words)).encode())
        for path in sorted(sources(bound.block)):
            digest.update(path.read_bytes())
        if bound.frozen:
            digest.update(str(len(self.x)).encode())  # autotuning uses batches of this size
            for tensor in bound.constants().values():
                digest.update(tensor.flatten().view(torch.uint8).numpy().data)
        return f"{digest.hexdigest()[:32]}.pt2"

    def load(self, folder: Path) -> Loader | None:
        """Load the package with the block's weights; None if the file is missing or damaged."""
        path = folder / self.name
        if not zipfile.is_zipfile(path):
            return None
        try:
            loader = Loader(str(path), "model", False, 1, -1, False)
            if not self.bound.frozen:
                weights = self.bound.constants()
                loader.load_constants({name: weights[name] for name in loader.get_constant_fqns()}, False, True, True)
        except (RuntimeError, KeyError):
            return None
        mark_used(path)
        return loader

    def compile(self, folder: Path) -> None:
        """Compile into ``folder``; raises ``EngineUnavailable`` on failure or on forbidden external calls."""
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            program, package = Path(temporary) / "program.pt2", Path(temporary) / "package.pt2"
            with TRACING:
                export(self.bound, self.x, program)
            compile_in_subprocess(program, package, self.options())
            if not self.allow_external_calls and (calls := external_calls(source_of(package))):
                raise EngineUnavailable(
                    f"the compiled code calls {', '.join(calls)}: not safe here in {self.bound.dtype}"
                )
            package.replace(folder / self.name)

    def options(self) -> dict[str, Any]:
        backends = "CPP,ATEN" if self.allow_external_calls else "CPP"
        return {**FROZEN, "max_autotune_gemm_backends": backends} if self.bound.frozen else SHARED


def export(bound: BoundBlock, x: Tensor, path: Path) -> None:
    from torch.export import Dim, export, save  # imports the tracer, which cached packages do not need

    try:
        with torch.no_grad():
            copied = copy.deepcopy(bound).requires_grad_(False)  # inference tensors cannot be traced
            save(export(copied, (x,), dynamic_shapes=({0: Dim.DYNAMIC},)), path)
    except Exception as error:  # tracers raise many types
        raise EngineUnavailable(f"torch.export cannot trace it: {first_line(error)}") from error


def compile_in_subprocess(program: Path, package: Path, options: dict[str, Any]) -> None:
    settings = json.dumps({"threads": torch.get_num_threads(), "options": options})
    command = [sys.executable, "-P", str(COMPILER), str(program), str(package), settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise EngineUnavailable(f"Inductor crashed while compiling (signal {-done.returncode})")
    if done.returncode:
        raise EngineUnavailable(
            f"Inductor cannot compile it: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}"
        )


def external_calls(code: str) -> list[str]:
    """Return the sorted names of torch operators, oneDNN and BLAS functions that generated C++ or Python code calls."""
    return sorted(set(EXTERNAL_CALL.findall(code)))


def source_of(package: Path) -> str:
    with zipfile.ZipFile(package) as archive:
        return "\n".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".cpp"))


def cpu_capability() -> str:
    """Describe the instruction sets that the compiler may use."""
    return f"{torch.backends.cpu.get_cpu_capability()} {torch.cpu.get_capabilities()}"


def structure(block: nn.Module) -> Iterator[str]:
    """Describe a block without its weights; equal for blocks that can share a package."""
    for path, part in block.named_modules():
        settings = {name: stable_repr(value) for name, value in vars(part).items() if not TRAINING_ONLY.fullmatch(name)}
        yield f"{path} {stable_repr(type(part))} {settings}"
    for name, tensor in [*block.named_parameters(), *block.named_buffers()]:
        yield f"{name} {tuple(tensor.shape)} {tensor.stride()} {tensor.dtype}"


def stable_repr(value: object) -> str:
    """``repr`` that is the same in every process: functions and classes by name instead of by address."""
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def sources(block: nn.Module) -> set[Path]:
    """Return the source files whose code a block may run, except torch's."""
    files = {getattr(sys.modules[type(part).__module__], "__file__", None) for part in block.modules()}
    outside_torch = {Path(file) for file in files if file and not file.startswith(os.path.dirname(torch.__file__))}
    layers = Path(__file__).parents[2] / "layers"
    return outside_torch | set(layers.glob("*.py"))


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
