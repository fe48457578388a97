"""Does the kernel work on this CPU? Run in a process of its own, which a forbidden instruction may end."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.deploy.native.attention import NativeAttend
from vitreous.deploy.native.build import open_library
from vitreous.deploy.native.linear import KINDS, Kind, NativeLinear
from vitreous.layers.attention import Attend

TOLERANCE: dict[Kind, float] = {"int16": 0.005, "int8": 0.05, "bf16": 0.02, "fp32": 1e-5}


def main(path: str) -> None:
    """Ends with an error unless attention and every kind of layer give nearly what torch gives."""
    library = open_library(Path(path))
    torch.manual_seed(0)
    linear, x = nn.Linear(200, 72), torch.randn(150, 200)
    expected = linear(x)
    for kind in KINDS if "amx" in Path(path).name else [kind for kind in KINDS if kind != "bf16"]:
        check(kind, NativeLinear(linear, kind, library)(x), expected, TOLERANCE[kind])
    q, k, v = torch.randn(3, 2, 2, 30, 24)
    check("attention", NativeAttend(Attend(), library)(q, k, v), Attend()(q, k, v), TOLERANCE["int16"])


def check(what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    error = (found - expected).norm() / expected.norm()
    if not error < tolerance:
        raise SystemExit(f"{what}: relative error {error:.3f}")
