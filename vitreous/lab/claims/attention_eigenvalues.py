"""The largest eigenvalue of attention is 1; the others are complex, and do not say how concentrated it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous.explain.measure_figures import side_by_side
from vitreous.explain.report_figures import BLUE, INK, ORANGE, plain
from vitreous.lab.attention_matrix import attention_matrix, random_heads
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.figures import legend
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.real import deit_tiny, pictures, traces
from vitreous.lab.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import Outcome

CLAIM = Claim(
    title="The eigenvalues of attention",
    statement="The rows of an attention matrix are positive and add up to 1. Its eigenvalues, in falling order from λ₁ = 1, "
    "show how concentrated attention is.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\sum_j A_{ij} = 1, \quad A_{ij} \geq 0, \quad 1 = \lambda_1 \geq \lambda_2 \geq \dots \geq \lambda_n",
    right="Rows, signs and λ₁ are right. The matrix is not symmetric, so most eigenvalues are complex and only their moduli "
    "have an order. And they do not show concentration: attention of every query to one and the same key has the "
    "eigenvalues of attention to all keys alike.",
    right_formula=r"1 = \lambda_1 \geq |\lambda_2| \geq \dots \geq |\lambda_n|, \quad \lambda_i \in \mathbf{C}",
    meaning="|λ₂| tells how fast repeated attention makes tokens alike, which is worth knowing. For how concentrated a head "
    "is, take the entropy of its rows; for how many patterns it has, its singular values.",
)
TOKENS, WIDTH = 64, 32


def right_second(strength: float, towards_itself: bool) -> float:
    """|λ₂| when every query prefers itself, or all prefer the same key, by a logit of ``strength``."""
    weight = torch.tensor(strength).exp().item()
    return (weight - 1) / (weight + TOKENS - 1) if towards_itself else 0.0


def row_error(a: Tensor) -> float:
    return float((a.sum(dim=-1) - 1).abs().max())


def moduli(a: Tensor) -> Tensor:
    """|λ₁| ≥ |λ₂| ≥ … of each matrix."""
    return torch.linalg.eigvals(a).abs().sort(descending=True).values


def share_complex(a: Tensor) -> float:
    """How many eigenvalues have an imaginary part that rounding cannot explain."""
    return float((torch.linalg.eigvals(a).imag.abs() > 1e-6).double().mean())


def preferring(strength: float, towards_itself: bool) -> Tensor:
    """Attention to oneself, or of all to the first key; without strength to all alike."""
    logits = strength * torch.eye(TOKENS, dtype=torch.float64)
    return attention_matrix(torch.eye(TOKENS, dtype=torch.float64), logits if towards_itself else logits[:1].T.expand(-1, TOKENS), scaled=False)


def draw(outcome: Outcome) -> Figure:
    """The eigenvalues of one matrix on the complex plane."""
    figure, (axis,) = side_by_side(1, width=4.2, height=3.6)
    return figure


def cases(trial: Trial) -> Iterator[Case]:
    yield from ()
