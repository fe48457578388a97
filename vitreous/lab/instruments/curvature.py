"""Largest eigenvalue of a loss's Hessian by Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Vector = list[Tensor]


def largest_eigenvalue(
    loss: Callable[[], Tensor], parameters: Sequence[Tensor], *, steps: int, seed: int = 0
) -> tuple[float, Vector]:
    """Return the eigenvalue of largest modulus and its unit vector, by power iteration: v ← Hv / ‖Hv‖, λ = vᵀHv.

    Hv is the gradient of gᵀv, where g is the gradient. Fused attention has no second derivative, so the math backend is
    used.
    """
    draws = torch.Generator().manual_seed(seed)
    vector = unit([torch.randn(each.shape, generator=draws) for each in parameters])
    value = 0.0
    with sdpa_kernel(SDPBackend.MATH):
        gradient = torch.autograd.grad(loss(), parameters, create_graph=True)
        for _ in range(steps):
            product = torch.autograd.grad(gradient, parameters, grad_outputs=vector, retain_graph=True)
            value = dot(vector, product)
            found, vector = vector, unit(product)
    return value, found


def curvature_along(loss: Callable[[], Tensor], parameters: Sequence[Tensor], vector: Vector, *, step: float) -> float:
    """Compute the curvature along v by finite differences: (L(w + s·v) − 2 L(w) + L(w − s·v)) / ‖s·v‖²."""
    around = [float(loss_at(loss, parameters, vector, step * sign)) for sign in (1, 0, -1)]
    return (around[0] - 2 * around[1] + around[2]) / (step**2 * dot(vector, vector))


@torch.no_grad()
def loss_at(loss: Callable[[], Tensor], parameters: Sequence[Tensor], vector: Vector, step: float) -> Tensor:
    """Evaluate the loss at w + step · v, then restore the parameters."""
    before = [each.clone() for each in parameters]
    for each, direction in zip(parameters, vector, strict=True):
        each += step * direction
    try:
        return loss()
    finally:
        for each, old in zip(parameters, before, strict=True):
            each.copy_(old)


def unit(vector: Sequence[Tensor]) -> Vector:
    """Normalize to unit length."""
    length = dot(vector, vector) ** 0.5
    return [each / length for each in vector]


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Inner product over all tensors."""
    return float(sum((x * y).sum() for x, y in zip(a, b, strict=True)))
