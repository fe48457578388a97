"""Capabilities of this machine, tested in a subprocess and cached.

Some virtual machines advertise CPU instructions that crash the process, which cannot be caught. Such instructions are
therefore tried in a subprocess (:func:`survives`), once per CPU and torch version.
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

CACHE_PATTERNS = ("survives-*.json", "choice-*.json", "linear-*.so", "*.pt2")
UNUSED_DAYS = 90

BF16_PRODUCT = "import torch; a = torch.ones(512, 512, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 512"


def bf16_is_safe() -> bool:
    """Return whether torch's bfloat16 matrix product works on this CPU."""
    return survives(BF16_PRODUCT)


@functools.cache
def survives(program: str) -> bool:
    """Return whether a Python program exits normally in a subprocess; the result is stored in the cache folder."""
    key = digest("\n".join([cpu_name(), *sorted(cpu_flags()), version("torch"), program]))
    cached = cache_folder() / f"survives-{key[:16]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = bool(json.loads(cached.read_text())["survives"])
        mark_used(cached)
        return known
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0
    with contextlib.suppress(OSError):
        content = {"survives": result, "program": program, "cpu": cpu_name()}
        write_atomically(cached, json.dumps(content, indent=1).encode())
    return result


@functools.cache
def cache_folder() -> Path:
    """Return the cache folder of compiled code and test results: $VITREOUS_CACHE, or ``vitreous`` in the user's cache.

    A folder that is not writable is replaced by a temporary one for this process.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("VITREOUS_CACHE") or Path(home, "vitreous"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="vitreous-"))


def mark_used(path: Path) -> None:
    """Touch a cached file, so that :func:`prune_cache` keeps it."""
    with contextlib.suppress(OSError):
        os.utime(path)


def prune_cache(days: float = UNUSED_DAYS) -> None:
    """Remove cached files that have not been used for this many days."""
    for path in [path for pattern in CACHE_PATTERNS for path in cache_folder().glob(pattern)]:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - days * 86_400:
                path.unlink()


@functools.cache
def cpu_info() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo, or nothing if that does not exist."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def cpu_name() -> str:
    return cpu_info().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Return the CPU's instruction sets by their Linux names, except those listed in $VITREOUS_WITHOUT."""
    return frozenset(cpu_info().get("flags", "").split()) - set(os.environ.get("VITREOUS_WITHOUT", "").split(","))


def c_compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    names = (os.environ.get("CC"), "gcc", "clang", "cc")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def cpp_compiler() -> str | None:
    """Return the path of the C++ compiler that torch.compile uses, or None."""
    command = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return shutil.which(command.split()[0])
