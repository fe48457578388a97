"""The kernel, compiled once for this machine and kept: a C file becomes a library that ctypes opens."""

from __future__ import annotations

import ctypes
import functools
import subprocess
from pathlib import Path

from vitreous import machine
from vitreous.deploy.engine import Unfit
from vitreous.files import digest, replacing

HOME = Path(__file__).parent
SOURCES = sorted(HOME.glob("*.c"))
HEADERS = sorted(HOME.glob("*.h"))

#: What to compile for, best first: the CPU flags it needs, and how to say so to the compiler.
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

#: Loops become vectors only where sums may be reordered. All of -ffast-math would do, but a library linked with it
#: changes how the whole process rounds small numbers.
LOOSE = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
    "-fno-strict-aliasing",
)

#: Run in a process of its own: on some virtual machines an instruction that the CPU announces ends the process.
TRIAL = "from vitreous.deploy.native.trial import main; main({path!r})"


def compile_library(level: str, *more: str, folder: Path | None = None) -> Path:
    """The library for one of the ``LEVELS``, from the cache if it was compiled before."""
    compiler = machine.c_compiler()
    if compiler is None:
        raise Unfit("no C compiler found (gcc or clang, or the one that the variable CC names)")
    options = [
        "-O3",
        "-std=gnu11",
        "-fPIC",
        "-shared",
        "-fopenmp",
        "-fno-strict-aliasing",
        *LOOSE,
        *LEVELS[level][1],
        *more,
    ]
    identity = "\n".join([compiler, *options, *(path.read_text() for path in (*SOURCES, *HEADERS))])
    folder = machine.cache_folder() if folder is None else folder
    library = folder / f"linear-{level}-{digest(identity)[:16]}.so"
    if not library.exists():
        with replacing(library) as fresh:
            command = [compiler, *options, *map(str, SOURCES), "-o", str(fresh), "-lm"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise Unfit(f"{compiler} cannot compile the kernel: {last_line(result.stderr)}")
    machine.used(library)
    return library


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def library() -> tuple[str, ctypes.CDLL]:
    """The best level that works here, and its library: compiled, and tried out in another process."""
    return library_for(machine.cpu_flags())


@functools.cache
def library_for(flags: frozenset[str]) -> tuple[str, ctypes.CDLL]:
    reasons = []
    for level, (needed, _) in LEVELS.items():
        if not needed <= flags or level == "portable":
            continue
        try:
            path = compile_library(level)
        except Unfit as reason:
            reasons.append(f"{level}: {reason}")
            continue
        if machine.survives(TRIAL.format(path=str(path))):
            return level, open_library(path)
        reasons.append(f"{level}: the kernel does not work in a trial")
    raise Unfit("; ".join(reasons) or "the kernel is made for x86 CPUs with AVX2 or better")


def open_library(path: Path) -> ctypes.CDLL:
    opened = ctypes.CDLL(str(path))
    for room in (opened.room, opened.mlp_room, opened.attention_room):
        room.restype = ctypes.c_long
    for kernel in (opened.linear, opened.mlp, opened.attention):
        kernel.restype = None
    if opened.ready():
        raise Unfit("the operating system does not give AMX tiles to this process")
    return opened
