"""Linear probes: what can be read off features by a straight line, found in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: How much the weights are held back, as shares of the features' mean variance; the best is chosen.
HELD_BACK = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


def ridge(x: Float[Tensor, "n f"], y: Float[Tensor, "n k"], new: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
    """What ridge regression from x to y says of new features: ŷ = ȳ + x (xᵀx + λI)⁻¹ xᵀ (y − ȳ), x standardized.

    λ is the one that predicts each row best from all the others, which needs no further fit: the error of a row left
    out is its residual / (1 − h), with h its own share in its prediction.
    """
    center, spread = x.mean(dim=0), x.std(dim=0).clamp_min(1e-6)
    x, new = (x - center) / spread, (new - center) / spread
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    middle = y.mean(dim=0)
    projected = u.T @ (y - middle)

    def shrink(share: float) -> Tensor:
        return s.square() / (s.square() + share * len(x))

    def left_out_error(share: float) -> float:
        own = (u.square() * shrink(share)).sum(dim=1) + 1 / len(x)
        residual = y - middle - u @ (shrink(share)[:, None] * projected)
        return float((residual / (1 - own)[:, None].clamp_min(1e-6)).square().sum())

    best = min(HELD_BACK, key=left_out_error)
    return middle + new @ vt.T @ ((shrink(best) / s.clamp_min(1e-12))[:, None] * projected)


def explained(x: Float[Tensor, "n f"], y: Float[Tensor, "n k"], learn: int) -> float:
    """R² of a property on the rows after the first ``learn``, from which it was learned; the mean over its columns."""
    error = (ridge(x[:learn], y[:learn], x[learn:]) - y[learn:]).square().sum(dim=0)
    return float((1 - error / (y[learn:] - y[learn:].mean(dim=0)).square().sum(dim=0)).mean())


def accuracy(x: Float[Tensor, "n f"], labels: Int[Tensor, " n"], learn: int) -> float:
    """The share of the rows after the first ``learn`` whose class is read right."""
    targets = torch.nn.functional.one_hot(labels).to(x.dtype)
    return float((ridge(x[:learn], targets[:learn], x[learn:]).argmax(dim=1) == labels[learn:]).double().mean())


def by_block(blocks: Sequence[Float[Tensor, "n f"]], known: Tensor) -> list[list[float]]:
    """A row for each third of the images, predicted from the others: what is read off every block there.

    Classes (n,) are read as the share that is right, properties (n, k) as R².
    """
    number = len(known)
    read = accuracy if known.ndim == 1 else explained
    orders = [torch.arange(number).roll(third * (number // 3)) for third in range(3)]
    return [[read(x[order], known[order], number - number // 3) for x in blocks] for order in orders]


def edge_ways(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 2"]:
    """Which way edges run on the whole: upright against level, one diagonal against the other; −1 to 1 each."""
    gray = images.mean(dim=1)
    down, across = gray[:, 1:, :-1] - gray[:, :-1, :-1], gray[:, :-1, 1:] - gray[:, :-1, :-1]
    energy = (down.square() + across.square()).mean(dim=(1, 2)).clamp_min(1e-12)
    ways = (across.square() - down.square(), 2 * across * down)
    return torch.stack([way.mean(dim=(1, 2)) / energy for way in ways], dim=1)
