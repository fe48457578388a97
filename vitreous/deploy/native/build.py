"""Compile the C kernels for this machine, cache the shared library, and open it with ctypes."""

from __future__ import annotations

import ctypes
import functools
import subprocess
from pathlib import Path

from vitreous import machine
from vitreous.deploy.engine import EngineUnavailable
from vitreous.files import atomic_replacement, digest

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.c"))
HEADERS = sorted(FOLDER.glob("*.h"))

#: Instruction sets, best first: the CPU flags each requires, and its compiler options.
LEVELS: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "amx": (
        frozenset({"amx_tile", "amx_int8", "amx_bf16", "avx512_vnni"}),
        ("-mavx512f", "-mavx512vnni", "-mavx2", "-mamx-tile", "-mamx-int8", "-mamx-bf16", "-DTILES=<immintrin.h>"),
    ),
    "avx512_vnni": (
        frozenset({"avx512f", "avx512_vnni", "fma"}),
        ("-mavx512f", "-mavx512vnni", "-mavx2", "-mfma", "-mprefer-vector-width=512"),
    ),
    "avx2": (frozenset({"avx2", "fma"}), ("-mavx2", "-mfma")),
    "portable": (frozenset(), ()),
}

#: Reductions are vectorized only if sums may be reordered. -ffast-math would allow it too, but a library linked with it
#: makes the whole process flush denormals to zero.
REORDERED_SUMS = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
    "-fno-strict-aliasing",
)

#: Run in a subprocess: on some virtual machines an instruction that the CPU advertises kills the process.
TRIAL = "from vitreous.deploy.native.trial import main; main({path!r})"


def compile_library(level: str, *extra_options: str, folder: Path | None = None) -> Path:
    """Return the library for one of the ``LEVELS``, compiled unless it is cached already."""
    compiler = machine.c_compiler()
    if compiler is None:
        raise EngineUnavailable("no C compiler found; install gcc or clang, or set CC")
    options = [
        "-O3",
        "-std=gnu11",
        "-fPIC",
        "-shared",
        "-fopenmp",
        "-fno-strict-aliasing",
        *REORDERED_SUMS,
        *LEVELS[level][1],
        *extra_options,
    ]
    identity = "\n".join([compiler, *options, *(path.read_text() for path in (*SOURCES, *HEADERS))])
    folder = machine.cache_folder() if folder is None else folder
    library = folder / f"linear-{level}-{digest(identity)[:16]}.so"
    if not library.exists():
        with atomic_replacement(library) as fresh:
            command = [compiler, *options, *map(str, SOURCES), "-o", str(fresh), "-lm"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise EngineUnavailable(f"{compiler} failed to compile the kernels: {last_line(result.stderr)}")
    machine.mark_used(library)
    return library


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def library() -> tuple[str, ctypes.CDLL]:
    """Return the best level that passes its self-test on this machine, with its library."""
    return library_for(machine.cpu_flags())


@functools.cache
def library_for(flags: frozenset[str]) -> tuple[str, ctypes.CDLL]:
    reasons = []
    for level, (needed, _) in LEVELS.items():
        if not needed <= flags or level == "portable":
            continue
        try:
            path = compile_library(level)
        except EngineUnavailable as reason:
            reasons.append(f"{level}: {reason}")
            continue
        if machine.survives(TRIAL.format(path=str(path))):
            return level, open_library(path)
        reasons.append(f"{level}: the kernels fail their self-test")
    raise EngineUnavailable("; ".join(reasons) or "the kernels need an x86 CPU with AVX2 or better")


def open_library(path: Path) -> ctypes.CDLL:
    opened = ctypes.CDLL(str(path))
    for size in (opened.linear_workspace_bytes, opened.mlp_workspace_bytes, opened.attention_workspace_bytes):
        size.restype = ctypes.c_long
    for kernel in (opened.linear, opened.mlp, opened.attention):
        kernel.restype = None
    if opened.init():
        raise EngineUnavailable("the operating system refuses AMX tiles to this process")
    return opened
