"""Record results with what is needed to reproduce them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def write_record(path: Path, module: str, seed: int, **results: Any) -> dict[str, Any]:
    """Write the command ``python -m module …``, commit, seed, threads and results as JSON."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    made = {
        "command": " ".join([f"python -m {module}", *sys.argv[1:]]),
        "commit": commit,
        "seed": seed,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made | results, indent=1) + "\n")
    return made | results
