"""Does the kernel work on this CPU? Run in a process of its own, which a forbidden instruction may end."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from vitreous.deploy.native.build import open_library
from vitreous.deploy.native.linear import KINDS, Kind, NativeLinear

TOLERANCE: dict[Kind, float] = {"int16": 0.005, "int8": 0.05, "bf16": 0.02}


def main(path: str) -> None:
    """Ends with an error unless every kind of layer gives nearly what torch gives."""
    library = open_library(Path(path))
    torch.manual_seed(0)
    linear, x = nn.Linear(200, 72), torch.randn(150, 200)
    expected = linear(x)
    for kind in KINDS if "amx" in Path(path).name else ("int16", "int8"):
        error = (NativeLinear(linear, kind, library)(x) - expected).norm() / expected.norm()
        if not error < TOLERANCE[kind]:
            raise SystemExit(f"{kind}: relative error {error:.3f}")
