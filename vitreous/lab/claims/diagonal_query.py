"""One-hot positions and a query of ones detect a full diagonal, if the query's norm is large enough."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import exp, sqrt

import torch
from torch import Tensor

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.attention_matrix import attention_matrix
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="A query that reads the diagonal",
    statement="In a grid of 2 × 2 patches the keys are one-hot position codes. The query [1, 0, 0, 1] matches the "
    "patches of the diagonal, so the softmax focuses on them and the output tells whether something lies there: "
    "attention can check a spatial arrangement.",
    sources=(Source.PRINCIPLES,),
    formula=r"k_i = e_i, \quad q = [1, 0, 0, 1]^\top",
    right="The diagonal gets 73 % of the attention, and 62 % once logits are divided by √4. Below two thirds the "
    "other patches can outweigh it: one patch of the diagonal and both others give more than the whole diagonal. A "
    "longer query fixes that; a larger grid requires a longer one.",
    right_formula=r"\mathrm{share} = \frac{g \, e^{z}}{g \, e^{z} + (g^2 - g)}, \quad z = |q|_\infty / \sqrt{d}",
    meaning="A softmax never gives a weight of zero: to ignore a key, a head needs a difference of logits that "
    "grows with the number of tokens. Where queries and keys are normalized, make the temperature learnable, or no "
    "head can concentrate on a few of many patches.",
)


def document() -> float:
    """Focus on the diagonal means more than half of the attention."""
    return 0.5


def right(side: int, strength: float, scaled: bool) -> float:
    """Share of a grid's diagonal, for a query of ``strength`` there and 0 elsewhere."""
    weight = exp(strength / (sqrt(side**2) if scaled else 1.0))
    return side * weight / (side * weight + side**2 - side)


def right_margin(share: float) -> float:
    """All of the diagonal of 2 × 2 minus its strongest rival: one patch of it, and both others."""
    return share - (share / 2 + 1 - share)


def weights(side: int, strength: float, scaled: bool) -> Tensor:
    """Attention weights of the query, as a grid."""
    query = strength * torch.eye(side).flatten()[None]
    return attention_matrix(query, torch.eye(side**2), scaled=scaled).view(side, side)


def margin(strength: float, scaled: bool) -> float:
    """Smallest output with a full diagonal minus the largest without, over all contents of 0 or 1 per patch."""
    attention = weights(2, strength, scaled)
    contents = [torch.tensor(bits).view(2, 2) for bits in product((0.0, 1.0), repeat=4)]
    outputs = [(bool(content.diag().all()), float((attention * content).sum())) for content in contents]
    return min(value for full, value in outputs if full) - max(value for full, value in outputs if not full)


def cases(trial: Trial) -> Iterator[Case]:
    for name, side, strength, scaled in (
        ("2 × 2, not scaled", 2, 1.0, False),
        ("2 × 2, divided by √d", 2, 1.0, True),
        ("2 × 2, divided by √d, 8 times the query", 2, 8.0, True),
        ("14 × 14, divided by √d", 14, 1.0, True),
        ("14 × 14, divided by √d, 50 times the query", 14, 50.0, True),
    ):
        share = right(side, strength, scaled)
        yield Case(
            f"share of the diagonal, {name}",
            exactly(float(weights(side, strength, scaled).diag().sum())),
            document=AtLeast(document()),
            right=Near(share, 1e-5),
        )
        if side == 2:
            yield Case(
                f"lead of a full diagonal over any other content, {name}",
                exactly(margin(strength, scaled)),
                document=AtLeast(0.0),
                right=Near(right_margin(share), 1e-5),
            )
