"""Measure the peak operations per second of this machine, the reference for utilization.

    python -m benchmarks.limit

In float32 the limit is the better of torch's product of two large matrices and a loop of multiply-adds that stays in
registers (``limit.c``, where there is a C compiler). int16, int8 and bf16 have loops only: of vector instructions, and
on CPUs with AMX of tiles. Loops run in subprocesses, one per thread and all at once, since a tile instruction can crash
the process on virtual machines with incomplete AMX support. (The tile loops were compiled and inspected, but not run
during development: that CPU has no AMX.)
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from vitreous.machine import c_compiler, cpu_flags, cpu_name

SOURCE = Path(__file__).with_suffix(".c")
LOOPS = ("fp32", "int16", "int8", "int8-tiles", "bf16-tiles")
TILES = ("-mamx-tile", "-mamx-int8", "-mamx-bf16")


def limits() -> dict[str, float]:
    """Operations per second on all of torch's threads, by precision; a multiply-add counts as two."""
    rates = {"fp32": product_rate()}
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder) / "limit")
        for loop in LOOPS:
            precision = loop.removesuffix("-tiles")
            if program and (rate := loop_rate(program, loop)):
                rates[precision] = max(rate, rates.get(precision, 0.0))
    return rates


@torch.inference_mode()
def product_rate(side: int = 2048, rounds: int = 5) -> float:
    a, b = torch.randn(side, side), torch.randn(side, side)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds)


def compiled(program: Path) -> Path | None:
    """Compile ``limit.c`` for this CPU; None without a suitable compiler."""
    compiler = c_compiler()
    if compiler is None:
        return None
    flags = ["-O3", "-march=native", *(TILES if "amx_tile" in cpu_flags() else ())]
    done = subprocess.run([compiler, *flags, SOURCE, "-o", program], capture_output=True, check=False)
    return program if done.returncode == 0 else None


def loop_rate(program: Path, loop: str) -> float | None:
    """Sum over threads of the median rate of each; None where the loop cannot run."""
    command, threads = [str(program), loop], range(torch.get_num_threads())
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in threads]
    samples = [[float(line) for line in child.communicate()[0].split()] for child in children]
    valid = all(child.returncode == 0 for child in children) and all(samples)
    return sum(map(statistics.median, samples)) if valid else None


def cpu() -> str:
    """Name of the CPU with its relevant instruction sets."""
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "amx_tile": "AMX"}
    features = ", ".join(word for flag, word in known.items() if flag in cpu_flags())
    return f"{cpu_name()} ({features})" if features else cpu_name()


def main() -> None:
    print(f"{cpu()}, {torch.get_num_threads()} threads")
    for precision, rate in limits().items():
        print(f"{precision:<6}{rate / 1e9:>10,.0f} billion operations per second")


if __name__ == "__main__":
    main()
