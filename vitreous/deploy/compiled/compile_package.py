"""An exported program in, a compiled package out: a program of its own, so that a crash of the compiler, or of a kernel
that it tries, harms nobody, and its settings and imports stay here.

    python compile_package.py program.pt2 package.pt2 '{"threads": 2, "options": {"freezing": true}}'
"""

from __future__ import annotations

import json
import sys

import torch
from torch._inductor import aoti_compile_and_package


def main(program: str, package: str, settings: str) -> None:
    chosen = json.loads(settings)
    torch.set_num_threads(chosen["threads"])  # which the compiler writes into its loops
    aoti_compile_and_package(torch.export.load(program), package_path=package, inductor_configs=chosen["options"])


if __name__ == "__main__":
    main(*sys.argv[1:])
