"""What this machine can do safely, found out where a crash does no harm: in a process of its own."""

from __future__ import annotations

import functools
import subprocess
import sys

TRIAL = "import torch; a = torch.ones(512, 512, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 512"


@functools.cache
def bf16_is_safe() -> bool:
    """Whether a product in bfloat16 survives on this CPU; on some virtual machines it ends the interpreter."""
    trial = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, timeout=120, check=False)
    return trial.returncode == 0
