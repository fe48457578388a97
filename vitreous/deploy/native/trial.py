"""Self-test of the compiled kernels, run in a subprocess since an illegal instruction kills the process."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.deploy.engine import Precision
from vitreous.deploy.native.attention import NativeAttend
from vitreous.deploy.native.build import open_library
from vitreous.deploy.native.linear import PRECISIONS, NativeLinear
from vitreous.layers.attention import Attend

TOLERANCE: dict[Precision, float] = {"int16": 0.005, "int8": 0.05, "bf16": 0.02, "fp32": 1e-5}


def main(path: str) -> None:
    """Exit with an error unless attention and a linear layer in every precision agree with torch."""
    library = open_library(Path(path))
    torch.manual_seed(0)
    linear, x = nn.Linear(200, 72), torch.randn(150, 200)
    expected = linear(x)
    for precision in (
        PRECISIONS if "amx" in Path(path).name else [precision for precision in PRECISIONS if precision != "bf16"]
    ):
        check(precision, NativeLinear(linear, precision, library)(x), expected, TOLERANCE[precision])
    q, k, v = torch.randn(3, 2, 2, 30, 24)
    check("attention", NativeAttend(Attend(), library)(q, k, v), Attend()(q, k, v), TOLERANCE["int16"])


def check(what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    error = (found - expected).norm() / expected.norm()
    if not error < tolerance:
        raise SystemExit(f"{what}: relative error {error:.3f}")
