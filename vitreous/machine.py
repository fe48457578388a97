"""What this machine can do safely, found out where a crash does no harm, and remembered.

Some virtual machines announce instructions that end the process which uses them, and nothing can catch that. So a
question about an instruction is put to a process of its own (:func:`survives`), once for a CPU and version of torch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from vitreous.files import digest, write_atomically

CACHED = ("survives-*.json", "choice-*.json", "linear-*.so", "*.pt2")  # what we keep in the cache folder
UNUSED_DAYS = 90

BF16_PRODUCT = "import torch; a = torch.ones(512, 512, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 512"


def bf16_is_safe() -> bool:
    """Whether torch's own products in bfloat16 survive on this CPU."""
    return survives(BF16_PRODUCT)


@functools.cache
def survives(program: str) -> bool:
    """Whether a Python program ends well here; the answer is kept in the cache folder."""
    question = digest("\n".join([cpu_name(), *sorted(cpu_flags()), version("torch"), program]))
    memory = cache_folder() / f"survives-{question[:16]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = bool(json.loads(memory.read_text())["survives"])
        used(memory)
        return known
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0
    with contextlib.suppress(OSError):
        content = {"survives": answer, "program": program, "cpu": cpu_name()}
        write_atomically(memory, json.dumps(content, indent=1).encode())
    return answer


@functools.cache
def cache_folder() -> Path:
    """Where compiled code and answers are kept: $VITREOUS_CACHE, or ``vitreous`` in the user's cache folder.

    A folder that cannot be written to is replaced by a temporary one, which lives as long as the process.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("VITREOUS_CACHE") or Path(home, "vitreous"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="vitreous-"))


def used(path: Path) -> None:
    """Say that a file of the cache is still needed."""
    with contextlib.suppress(OSError):
        os.utime(path)


def forget_unused(days: float = UNUSED_DAYS) -> None:
    """Remove what nobody has needed for so long: answers, choices and compiled code of other versions and models."""
    for path in [path for pattern in CACHED for path in cache_folder().glob(pattern)]:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - days * 86_400:
                path.unlink()


@functools.cache
def cpu_info() -> dict[str, str]:
    """The first processor of /proc/cpuinfo, where there is one."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def cpu_name() -> str:
    return cpu_info().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """The instruction sets that the CPU announces, in Linux's words; without those that $VITREOUS_WITHOUT names."""
    return frozenset(cpu_info().get("flags", "").split()) - set(os.environ.get("VITREOUS_WITHOUT", "").split(","))


def c_compiler() -> str | None:
    """The C compiler's path, if there is one."""
    names = (os.environ.get("CC"), "gcc", "clang", "cc")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def cpp_compiler() -> str | None:
    """The path of the C++ compiler that torch's own compiler will take, if there is one."""
    command = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return shutil.which(command.split()[0])
