"""Muon: momentum whose matrices are made orthogonal (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    m ← 0.95 m + 0.05 g;     u = orthogonal(0.05 g + 0.95 m);     W ← W (1 − η λ) − η √max(1, rows/columns) · u

Every direction of a weight matrix moves equally far.
``torch.optim.Muon`` computes in bfloat16, which kills the process on some CPUs, and takes no convolutions; this one
stays in float32 and reads a convolution as the matrix (out, in · y · x) that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

MOMENTUM = 0.95
QUINTIC = (3.4445, -4.7750, 2.0315)  # its five-fold iterate sends every singular value in (0, 1] close to 1


def orthogonal(matrix: Tensor) -> Tensor:
    """Newton-Schulz: about U Vᵀ where the matrix is U S Vᵀ."""
    x = matrix.flatten(1).float()
    tall = x.shape[0] > x.shape[1]
    x = x.mT if tall else x
    x = x / (x.norm() + 1e-7)
    a, b, c = QUINTIC
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).reshape(matrix.shape)


class MuonStep(torch.optim.Optimizer):
    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.move(weight, group["lr"], group["weight_decay"])
        return None

    def move(self, weight: Tensor, lr: float, weight_decay: float) -> None:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        update = orthogonal(torch.lerp(gradient, state["momentum"], MOMENTUM))
        rows, columns = weight.shape[0], weight[0].numel()
        weight.mul_(1 - lr * weight_decay).add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)
