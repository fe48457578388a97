"""Repeat the tests that depend on the instruction set as on older CPUs.

A limit hides CPU flags from Vitreous and restricts torch, MKL and oneDNN. Limits that change nothing on this CPU are
skipped, since the other tests run at that level already.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vitreous import machine

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("test_native.py", "test_accelerate.py", "test_shortcuts.py", "test_compiled.py")
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
SSE = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@dataclass(frozen=True)
class Limit:
    """An older CPU: prefixes of the flags it lacks, and the remaining kernels and torch capability."""

    lacks: tuple[str, ...]
    kernels: frozenset[str]
    best: str
    torch: str | None = None
    variables: tuple[tuple[str, str], ...] = ()

    def hidden(self) -> list[str]:
        return sorted(flag for flag in machine.cpu_flags() if flag.startswith(self.lacks))

    def environment(self) -> dict[str, str]:
        hidden = [os.environ.get("VITREOUS_WITHOUT", ""), *self.hidden()]
        return os.environ | dict(self.variables) | {"VITREOUS_WITHOUT": ",".join(hidden)}


ALWAYS = frozenset({"portable", "tiles"})
NO_AVX512 = ("amx", "avx512", "avx_vnni")
LIMITS = {
    "no AMX": Limit(("amx",), ALWAYS | {"avx2", "avx512_vnni"}, "avx512_vnni"),
    "no VNNI": Limit(("amx", "avx512_vnni", "avx_vnni"), ALWAYS | {"avx2"}, "avx2"),
    "AVX2": Limit(NO_AVX512, ALWAYS | {"avx2"}, "avx2", "AVX2", tuple(AVX2.items())),
    "portable": Limit((*NO_AVX512, "avx", "fma"), ALWAYS, "none", "DEFAULT", tuple(SSE.items())),
}

LEVELS = """
import torch
from vitreous.deploy.engine import EngineUnavailable
from vitreous.deploy.native import build
try:
    print(build.library()[0])
except EngineUnavailable:
    print("none")
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.fixture(params=LIMITS)
def limit(request):
    limit = LIMITS[request.param]
    if not limit.hidden():
        pytest.skip(f"the limit '{request.param}' changes nothing on this CPU: the other tests run at that level")
    return limit


def python(limit, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], env=limit.environment(), cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
@pytest.mark.skipif(machine.c_compiler() is None, reason="the kernel needs a C compiler")
def test_a_limit_is_obeyed(limit):
    kernel, capability = python(limit, "-c", LEVELS).stdout.split()
    assert kernel == limit.best
    assert limit.torch in (None, capability)


@pytest.mark.slow
@pytest.mark.skipif(machine.c_compiler() is None, reason="the kernel needs a C compiler")
def test_all_tests_pass_on_an_older_cpu(limit):
    """Remaining kernels are tested and the others skipped."""
    files = [str(Path(__file__).with_name(name)) for name in TESTS]
    result = python(limit, "-m", "pytest", "-v", "-m", "not slow", "-p", "no:cacheprovider", *files)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]
    for kernel in ALWAYS | {"avx2", "avx512_vnni"}:
        verdict = "PASSED" if kernel in limit.kernels else "SKIPPED"
        assert f"::test_every_shape[{kernel}-5-64-16] {verdict}" in result.stdout
