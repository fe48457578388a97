"""Compile an exported program into a package: a script run as a subprocess, so that a crash of the compiler or
of an autotuned kernel is harmless, and its settings and imports do not leak.

    python compile_package.py program.pt2 package.pt2 '{"threads": 2, "options": {"freezing": true}}'
"""

from __future__ import annotations

import json
import sys

import torch
from torch._inductor import aoti_compile_and_package


def main(program: str, package: str, settings: str) -> None:
    chosen = json.loads(settings)
    torch.set_num_threads(chosen["threads"])  # the compiler hard-codes the number of threads
    aoti_compile_and_package(torch.export.load(program), package_path=package, inductor_configs=chosen["options"])


if __name__ == "__main__":
    main(*sys.argv[1:])
