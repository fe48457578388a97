"""Compiled blocks on disk: a block is traced here, compiled by Inductor in a process of its own, and loaded by torch's
C++ runtime alone, which needs neither compiler nor tracer and starts in milliseconds.

A package's name says all that it depends on: the block's structure and code, the shapes, the precision, torch, the CPU
and the number of threads. In float32 it holds no weights: blocks of one structure share it, and each hands it its own,
which are not copied. In bfloat16 the weights are part of it, packed as the compiler's matrix products like them.
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

from vitreous.deploy.engine import Unfit
from vitreous.machine import used

COMPILER = Path(__file__).with_name("compile_package.py")
VERSION = 1  # of how packages are made
TRACING = threading.Lock()  # torch.export traces one program at a time
SHARED = {"aot_inductor.package_constants_in_so": False}
FROZEN = {"freezing": True, "max_autotune": True}
#: Settings that matter in training alone, the probabilities among them, and what torch itself keeps in a module.
TRAINING = re.compile(r"training|p|(.*_)?rate|_.*")
#: Calls into torch's own operators, any of which may end in oneDNN, and into oneDNN and BLAS directly.
OUTSIDE = re.compile(
    r"aoti_torch_cpu_\w+|aoti_torch_\w*(?:mkl|call)\w*|extern_kernels\.\w+|torch\.ops\.\w+\.\w+"
    r"|cpublas::\w+|\w*(?:mkldnn|dnnl|cblas|brgemm)_?\w*(?=\s*\()"
    r"|\bat::(?:native::)?\w*(?:mm|matmul|linear|conv\w*|dot_product\w*)(?=\s*\()"
)


class Piece(nn.Module):
    """A block as a function of one float32 tensor, with everything else that it is given fixed."""

    def __init__(self, block: nn.Module, rest: tuple[Any, ...], options: dict[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.block = block
        self.rest = rest
        self.options = options
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x.to(self.dtype), *self.rest, **self.options).float()

    @property
    def frozen(self) -> bool:
        return self.dtype is not torch.float32

    def constants(self) -> dict[str, Tensor]:
        """The weights and buffers by name: not copied."""
        return {name: tensor.detach() for name, tensor in [*self.named_parameters(), *self.named_buffers()]}


@dataclass(frozen=True)
class Package:
    """A piece compiled for tensors like ``x`` of any batch size; without ``outside_calls`` its code must run alone."""

    piece: Piece
    x: Tensor
    outside_calls: bool = True

    @cached_property
    def name(self) -> str:
        """Of its file: a digest of all that it depends on."""
        piece = self.piece
        words = [VERSION, torch.__version__, cpu(), torch.get_num_threads(), piece.dtype, self.outside_calls,
                 tuple(self.x.shape[1:]), piece.rest, piece.options, *structure(piece.block)]  # fmt: skip
        digest = hashlib.sha256("\n".join(map(str, words)).encode())
        for path in sorted(sources(piece.block)):
            digest.update(path.read_bytes())
        if piece.frozen:
            digest.update(str(len(self.x)).encode())  # kernels are chosen by trial on batches of this size
            for tensor in piece.constants().values():
                digest.update(tensor.flatten().view(torch.uint8).numpy().data)
        return f"{digest.hexdigest()[:32]}.pt2"

    def load(self, folder: Path) -> Loader | None:
        """What runs it, with the piece's own weights; None if there is no such file, or no sound one."""
        path = folder / self.name
        if not zipfile.is_zipfile(path):
            return None
        try:
            loader = Loader(str(path), "model", False, 1, -1, False)
            if not self.piece.frozen:
                weights = self.piece.constants()
                loader.load_constants({name: weights[name] for name in loader.get_constant_fqns()}, False, True, True)
        except (RuntimeError, KeyError):
            return None
        used(path)
        return loader

    def make(self, folder: Path) -> None:
        """Compile and keep it; Unfit if that fails, or if its code calls out and must not."""
        with tempfile.TemporaryDirectory(dir=folder) as workshop:
            program, package = Path(workshop) / "program.pt2", Path(workshop) / "package.pt2"
            with TRACING:
                export(self.piece, self.x, program)
            compile_apart(program, package, self.options())
            if not self.outside_calls and (calls := calls_out(source_of(package))):
                raise Unfit(f"the compiled code calls {', '.join(calls)}: not safe here in {self.piece.dtype}")
            package.replace(folder / self.name)

    def options(self) -> dict[str, Any]:
        backends = "CPP,ATEN" if self.outside_calls else "CPP"
        return {**FROZEN, "max_autotune_gemm_backends": backends} if self.piece.frozen else SHARED


def export(piece: Piece, x: Tensor, path: Path) -> None:
    from torch.export import Dim, export, save  # brings the tracer, which a start with kept packages does without

    try:
        with torch.no_grad():
            own = copy.deepcopy(piece).requires_grad_(False)  # weights made in inference mode cannot be traced
            save(export(own, (x,), dynamic_shapes=({0: Dim.DYNAMIC},)), path)
    except Exception as error:  # tracers raise many kinds
        raise Unfit(f"torch.export cannot trace it: {first_line(error)}") from error


def compile_apart(program: Path, package: Path, options: dict[str, Any]) -> None:
    settings = json.dumps({"threads": torch.get_num_threads(), "options": options})
    command = [sys.executable, "-P", str(COMPILER), str(program), str(package), settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise Unfit(f"Inductor died while it compiled (signal {-done.returncode})")
    if done.returncode:
        raise Unfit(f"Inductor cannot compile it: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}")


def calls_out(code: str) -> list[str]:
    """What generated code, C++ or Python, leaves to torch's operators, oneDNN or BLAS: each name once, sorted."""
    return sorted(set(OUTSIDE.findall(code)))


def source_of(package: Path) -> str:
    with zipfile.ZipFile(package) as archive:
        return "\n".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".cpp"))


def cpu() -> str:
    """What decides which instructions the compiler may use."""
    return f"{torch.backends.cpu.get_cpu_capability()} {torch.cpu.get_capabilities()}"


def structure(block: nn.Module) -> Iterator[str]:
    """A block without the values of its weights; equal for blocks that one compilation serves."""
    for path, part in block.named_modules():
        settings = {name: described(value) for name, value in vars(part).items() if not TRAINING.fullmatch(name)}
        yield f"{path} {described(type(part))} {settings}"
    for name, tensor in [*block.named_parameters(), *block.named_buffers()]:
        yield f"{name} {tuple(tensor.shape)} {tensor.stride()} {tensor.dtype}"


def described(value: object) -> str:
    """Functions and classes by name: their usual words hold an address, which changes from start to start."""
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def sources(block: nn.Module) -> set[Path]:
    """The files whose code a block may run, torch's own left out."""
    homes = {getattr(sys.modules[type(part).__module__], "__file__", None) for part in block.modules()}
    outside_torch = {Path(home) for home in homes if home and not home.startswith(os.path.dirname(torch.__file__))}
    layers = Path(__file__).parents[2] / "layers"
    return outside_torch | set(layers.glob("*.py"))


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
