"""The largest eigenvalue of attention is 1; the others are complex and need not measure concentration."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitreous.draw.style import BLUE, side_by_side, style_axis
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly
from vitreous.lab.figures import TEXT_STYLE, place_legend
from vitreous.lab.instruments.attention_matrix import attention_matrix, peaked_attention, random_heads, trained_heads
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="The eigenvalues of attention",
    statement="The entries of an attention matrix are never negative and each row adds up to 1. Its eigenvalues, in "
    "falling order from λ₁ = 1, show how concentrated attention is.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\sum_j A_{ij} = 1, \quad A_{ij} \geq 0, \quad 1 = \lambda_1 \geq \lambda_2 \geq \dots \geq \lambda_n",
    right="Rows, signs and λ₁ are right. But the matrix is not symmetric: most eigenvalues are complex, and only "
    "their moduli have an order. They need not measure concentration either: when all queries attend to one and the "
    "same key, the eigenvalues are those of uniform attention.",
    right_formula=r"1 = \lambda_1 \geq |\lambda_2| \geq \dots \geq |\lambda_n|",
    meaning="Sort by modulus, and never pass attention to a routine for symmetric matrices. To measure how "
    "concentrated a head is, use the entropy of its rows.",
)
TOKENS, WIDTH, STRENGTH = 64, 32, 12.0


def document_gap() -> float:
    """Difference expected if eigenvalues measure concentration: visible between one key and uniform attention."""
    return 0.1


def right_second(strength: float) -> float:
    """|λ₂| when each query prefers its own key by a logit of ``strength``."""
    return (exp(strength) - 1) / (exp(strength) + TOKENS - 1)


def eigenvalues(a: Tensor) -> Tensor:
    """Compute eigenvalues with numpy: on some CPUs torch 2.15's solver does not converge for some matrices."""
    return torch.from_numpy(np.linalg.eigvals(a.detach().double().numpy()))


def sorted_moduli(a: Tensor) -> Tensor:
    """|λ₁| ≥ |λ₂| ≥ … of each matrix."""
    return eigenvalues(a).abs().sort(descending=True).values


def share_complex(a: Tensor) -> Tensor:
    """Share of each matrix's eigenvalues whose imaginary part exceeds rounding error."""
    return (eigenvalues(a).imag.abs() > 1e-6).double().mean(dim=-1)


def gap(favorites: Tensor) -> float:
    """Difference in |λ₂| between every query attending to its favorite key and uniform attention."""
    second = [sorted_moduli(peaked_attention(favorites, strength))[1] for strength in (STRENGTH, 0.0)]
    return float((second[0] - second[1]).abs())


def cases(trial: Trial) -> Iterator[Case]:
    yield from matrices(torch.cat([random_attention(seed) for seed in trial.seeds]), "random heads")
    own, same = torch.arange(TOKENS), torch.zeros(TOKENS, dtype=torch.long)
    for name, favorites, expected in (("its own key", own, right_second(STRENGTH)), ("the same key", same, 0.0)):
        label = f"difference in |λ₂|: every query on {name}, or on all keys uniformly"
        yield Case(label, exactly(gap(favorites)), document=AtLeast(document_gap()), right=Near(expected, 1e-6))
    keep_plane(trial, "random", random_attention(0)[0])
    if trial.has("weights"):
        trained = next(trained_heads(trial, 1))[:: trial.choose(4, 1)]
        yield from matrices(trained, "DeiT-Tiny")
        keep_plane(trial, "DeiT-Tiny", trained[len(trained) // 2])


def random_attention(seed: int) -> Tensor:
    return attention_matrix(*random_heads(2, TOKENS, WIDTH, seed))


def matrices(a: Tensor, source: str) -> Iterator[Case]:
    """Test the text's statements about every attention matrix."""
    rows = exactly(float((a.sum(dim=-1) - 1).abs().max()))
    yield Case(f"{source}: largest error of a row's sum", rows, document=Near(0.0, 1e-6), right=Near(0.0, 1e-6))
    yield Case(f"{source}: smallest entry", exactly(float(a.min())), document=AtLeast(0.0), right=AtLeast(0.0))
    moduli = sorted_moduli(a)
    first = exactly(float(moduli[:, 0].max()))
    yield Case(f"{source}: largest |λ₁|", first, document=Near(1.0, 1e-6), right=Near(1.0, 1e-6))
    yield Case(f"{source}: largest |λ₂|", exactly(float(moduli[:, 1].max())), document=AtMost(1.0), right=AtMost(1.0))
    share = bootstrap(share_complex(a).tolist(), lambda shares: float(shares.mean()))
    yield Case(f"{source}: share of complex eigenvalues", share, document=Near(0.0, 0.01), right=AtLeast(0.3))


def keep_plane(trial: Trial, name: str, a: Tensor) -> None:
    values = eigenvalues(a)
    trial.keep(f"{name}, real", values.real.tolist())
    trial.keep(f"{name}, imaginary", values.imag.tolist())


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot eigenvalues of a random and a trained head in the complex plane; the text places them on the real axis."""
    figure, (axis,) = side_by_side(1, width=6.8, height=3.3)
    axis.axhline(0, label="the text: real numbers", **TEXT_STYLE)
    for name, color, marker in (("random", BLUE, "o"), ("DeiT-Tiny", "#009e73", "^")):
        if f"{name}, real" in outcome.series:
            real, imaginary = (outcome.series[f"{name}, {part}"] for part in ("real", "imaginary"))
            axis.scatter(real, imaginary, s=13, color=color, marker=marker, alpha=0.7, label=f"one head, {name}")
    axis.set(xlabel="real part of λ", ylabel="imaginary part of λ")
    style_axis(axis)
    place_legend(axis)
    return figure
