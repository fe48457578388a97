"""Linear probes by ridge regression in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Candidate ridge penalties, relative to the features' mean variance; chosen by leave-one-out error.
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


def ridge(x: Float[Tensor, "n f"], y: Float[Tensor, "n k"], new: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
    """Predict ``new`` by ridge regression from x to y: ŷ = ȳ + x (xᵀx + λI)⁻¹ xᵀ (y − ȳ), with x standardized.

    λ minimizes the leave-one-out error, which needs no refitting: the error of a held-out row is its residual divided
    by 1 − h, where h is its leverage.
    """
    center, spread = x.mean(dim=0), x.std(dim=0).clamp_min(1e-6)
    x, new = (x - center) / spread, (new - center) / spread
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    mean_y = y.mean(dim=0)
    projected = u.T @ (y - mean_y)

    def shrink(share: float) -> Tensor:
        return s.square() / (s.square() + share * len(x))

    def left_out_error(share: float) -> float:
        leverage = (u.square() * shrink(share)).sum(dim=1) + 1 / len(x)
        residual = y - mean_y - u @ (shrink(share)[:, None] * projected)
        return float((residual / (1 - leverage)[:, None].clamp_min(1e-6)).square().sum())

    best = min(PENALTIES, key=left_out_error)
    return mean_y + new @ vt.T @ ((shrink(best) / s.clamp_min(1e-12))[:, None] * projected)


def r_squared(x: Float[Tensor, "n f"], y: Float[Tensor, "n k"], learn: int) -> float:
    """Return R² of a probe trained on the first ``learn`` rows and tested on the others, averaged over columns."""
    error = (ridge(x[:learn], y[:learn], x[learn:]) - y[learn:]).square().sum(dim=0)
    return float((1 - error / (y[learn:] - y[learn:].mean(dim=0)).square().sum(dim=0)).mean())


def accuracy(x: Float[Tensor, "n f"], labels: Int[Tensor, " n"], learn: int) -> float:
    """Return the accuracy of a probe trained on the first ``learn`` rows and tested on the others."""
    targets = torch.nn.functional.one_hot(labels).to(x.dtype)
    return float((ridge(x[:learn], targets[:learn], x[learn:]).argmax(dim=1) == labels[learn:]).double().mean())


def probe_blocks(blocks: Sequence[Float[Tensor, "n f"]], known: Tensor) -> list[list[float]]:
    """Probe every block with three-fold cross-validation: one row of scores per fold.

    The score is accuracy for classes (n,), R² for properties (n, k).
    """
    number = len(known)
    score = accuracy if known.ndim == 1 else r_squared
    orders = [torch.arange(number).roll(third * (number // 3)) for third in range(3)]
    return [[score(x[order], known[order], number - number // 3) for x in blocks] for order in orders]


def edge_orientation(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 2"]:
    """Return the dominant edge orientation: vertical versus horizontal and between the diagonals, each −1 to 1."""
    gray = images.mean(dim=1)
    down, across = gray[:, 1:, :-1] - gray[:, :-1, :-1], gray[:, :-1, 1:] - gray[:, :-1, :-1]
    energy = (down.square() + across.square()).mean(dim=(1, 2)).clamp_min(1e-12)
    moments = (across.square() - down.square(), 2 * across * down)
    return torch.stack([moment.mean(dim=(1, 2)) / energy for moment in moments], dim=1)
