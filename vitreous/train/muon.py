"""Muon: momentum SGD with orthogonalized updates (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    m ← 0.95 m + 0.05 g;     u = orthogonalize(0.05 g + 0.95 m);     W ← W (1 − η λ) − η √max(1, rows/columns) · u

All singular values of an update are about equal. Unlike ``torch.optim.Muon``, which computes in bfloat16 (some CPUs
crash) and rejects convolutions, this implementation uses float32 and flattens a convolution to (out, in · y · x).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

MOMENTUM = 0.95
QUINTIC = (3.4445, -4.7750, 2.0315)  # iterated five times, maps singular values in (0, 1] close to 1


def orthogonalize(matrix: Tensor) -> Tensor:
    """Approximate U Vᵀ of the SVD U S Vᵀ by five Newton-Schulz iterations."""
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
    """Torch optimizer for matrices and convolution kernels."""

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
                    self.update(weight, group["lr"], group["weight_decay"])
        return None

    def update(self, weight: Tensor, lr: float, weight_decay: float) -> None:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        direction = orthogonalize(torch.lerp(gradient, state["momentum"], MOMENTUM))
        rows, columns = weight.shape[0], weight[0].numel()
        weight.mul_(1 - lr * weight_decay).add_(direction, alpha=-lr * max(1.0, rows / columns) ** 0.5)
