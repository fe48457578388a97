"""Low temperature selects one key, high temperature averages all: but ties share, and a bias is not scaled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import exp
from typing import TYPE_CHECKING

import torch

from vitreous.draw.style import INK, LINES, side_by_side, style_axis
from vitreous.explain.measures import entropy
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.figures import TEXT_STYLE, place_legend, plot_measurements
from vitreous.lab.instruments.attention_matrix import attention_matrix, random_heads
from vitreous.lab.prediction import near
from vitreous.lab.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="The temperature of attention",
    statement="Logits are divided by a temperature τ. As τ goes to 0 attention becomes one-hot, all of it on the best "
    "key; as τ grows without bound it becomes uniform, every key with the same weight.",
    sources=(Source.PRINCIPLES,),
    formula=r"z_{ij} = \frac{q_i^\top k_j}{\tau \sqrt{d_k}}",
    right="Right unless keys are equal or a bias is added. Equal keys share the mass at any temperature. A "
    "position bias is added after the division, so temperature does not affect it. In between, logits of variance "
    "1/τ² spread over n exp(−1/2τ²) keys, as long as that is many.",
    right_formula=r"\exp H = n \, \exp(-1 / 2\tau^2) \quad (\tau \geq 1)",
    meaning="Untrained attention at τ = 1 already attends to six keys in ten, so it starts as an average. Do not "
    "rely on a low temperature to select one token: patches of the same background are equal keys, unless positions "
    "distinguish them.",
    axes=Axes("temperature τ", "keys that share the attention, exp(H)", log="xy"),
)
TOKENS, WIDTH, COLD, HOT, TWINS = 196, 64, 1e-4, 1e3, 4
EQUAL, BIASED, DIFFERENT = "patches in fours that look alike", "with a bias of position", "all keys different"


def document(tau: float) -> float:
    """One key at low temperature, all of them at high temperature."""
    return 1.0 if tau < 1 else float(TOKENS)


def right(tau: float, *, twins: int = 1, bias_variance: float = 0.0) -> float:
    """Number of equal best keys at low temperature; otherwise by the variance of the logits, bias included."""
    return float(twins) if tau < 1 else TOKENS * exp(-(1 / tau**2 + bias_variance) / 2)


def measure(kind: str, tau: float, seed: int) -> float:
    """Mean over all queries of exp(entropy), the effective number of keys attended to."""
    q, k = random_heads(1, TOKENS, WIDTH, seed)
    if kind == EQUAL:
        k = k[:, torch.arange(TOKENS) // TWINS]
    bias = random_heads(1, TOKENS, TOKENS, seed + 1000)[0] if kind == BIASED else None
    return float(entropy(attention_matrix(q, k, bias=bias, temperature=tau)).exp().mean())


def cases(trial: Trial) -> Iterator[Case]:
    sweep = torch.logspace(-4, 3, trial.choose(15, 43)).tolist()
    trial.keep("temperature", sweep)
    for kind, options in ((DIFFERENT, {}), (EQUAL, {"twins": TWINS}), (BIASED, {"bias_variance": 1.0})):
        trial.keep(kind, [measure(kind, tau, seed=0) for tau in sweep])
        for tau in (COLD, 1.0, HOT):
            yield Case(
                f"{kind}, τ = {tau:g}",
                trial.repeat(partial(measure, kind, tau)),
                document=None if tau == 1 else near(document(tau), share=0.05),
                right=near(right(tau, **options), share=0.15 if tau == 1 else 0.05),
                at=tau,
                group=kind,
            )


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot the curve from low to high temperature, with the two limits given by the text."""
    figure, (axis,) = side_by_side(1, width=6.8, height=3.3)
    for kind, (color, _) in zip((DIFFERENT, EQUAL, BIASED), LINES, strict=False):
        axis.plot(outcome.series["temperature"], outcome.series[kind], color=color, linewidth=1.2)
        plot_measurements(axis, [case for case in outcome.cases if case.group == kind], color, kind)
    axis.hlines(
        [document(COLD), document(HOT)],
        [COLD, 1.0],
        [1.0, HOT],
        label="the text's limits",
        **{**TEXT_STYLE, "color": INK},
    )
    assert CLAIM.axes
    axis.set(xlabel=CLAIM.axes.x, ylabel=CLAIM.axes.y, xscale="log", yscale="log")
    style_axis(axis)
    place_legend(axis)
    return figure
