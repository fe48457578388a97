"""The head width bounds the rank of the logits, not of their softmax; low rank does not mean focus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.draw.style import INK, LINES, side_by_side, style_axis
from vitreous.explain.measures import effective_rank, entropy, rank
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly
from vitreous.lab.figures import RIGHT_STYLE, TEXT_STYLE, place_legend, plot_measurements, x_position
from vitreous.lab.instruments.attention_matrix import attention_matrix, peaked_attention, random_heads, trained_heads
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend

if TYPE_CHECKING:
    from matplotlib import axes
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="The rank of attention",
    statement="An attention matrix of n tokens has at most rank d, the width of its head. Its rank is low, which "
    "shows that attention focuses on a few positions.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\mathrm{rank}(A) \leq \min(n, d)",
    right="The bound holds for QKᵀ, before the softmax; after it the rank can be n, and is n for random and "
    "trained heads. And heads that focus less tend to have the lower effective rank: uniform attention has rank 1, "
    "every query on its own key full rank.",
    right_formula=r"\mathrm{rank}(Q K^\top) \leq \min(n, d), \quad \mathrm{rank}(\mathrm{softmax}(Q K^\top)) \leq n",
    meaning="A narrow head limits its logits, not how many patterns its weights can have. Measure focus by the "
    "entropy of the rows; a low effective rank means that queries attend to the same keys, be they few or all.",
)
TOKENS = 64
LOGITS, ATTENTION = "logits", "attention"
TEMPERATURES = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def document(n: int, d: int) -> int:
    return min(n, d)


def right(n: int) -> int:
    return n


def focus(a: Tensor) -> tuple[Tensor, Tensor]:
    """Number of keys each query attends to, exp(entropy), and effective rank, per matrix."""
    return entropy(a).mean(dim=-1).exp(), effective_rank(a)


def correlation(rows: NDArray[np.float64]) -> float:
    """Spearman correlation between number of keys and effective rank."""
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(rows[:, 0]), rankdata(rows[:, 1]))[0, 1])


def by_temperature(seed: int, d: int) -> NDArray[np.float64]:
    """Number of keys and effective rank of one head, from low to high temperature."""
    q, k = random_heads(1, TOKENS, d, seed)
    found = [focus(attention_matrix(q, k, temperature=tau)) for tau in TEMPERATURES]
    return np.array([[float(part) for part in pair] for pair in found])


def cases(trial: Trial) -> Iterator[Case]:
    widths = trial.choose(quick=(8, 32), full=(4, 8, 16, 32))
    for d in widths:
        yield from ranks(trial, d)
    measured = trial.repeat(lambda seed: correlation(by_temperature(seed, widths[-1])))
    label = "correlation of effective rank with keys attended to, random heads from hard to soft"
    yield Case(label, measured, document=AtLeast(0.0), right=AtMost(-0.4))
    for name, values in zip(("keys", "ranks"), by_temperature(0, widths[-1]).T, strict=True):
        trial.keep(name, values)
    yield from extremes()
    if trial.has("weights"):
        yield from trained(trial)


def ranks(trial: Trial, d: int) -> Iterator[Case]:
    """Compare the rank before and after the softmax."""
    bound, where = document(TOKENS, d), f"{TOKENS} tokens, d = {d}"
    measured = trial.repeat(lambda seed: float(rank(Attend().logits(*random_heads(1, TOKENS, d, seed)))))
    yield Case(f"rank of the logits QKᵀ, {where}", measured, right=Near(bound, 0.0), at=d, group=LOGITS)
    measured = trial.repeat(lambda seed: float(rank(attention_matrix(*random_heads(1, TOKENS, d, seed)))))
    right_rank = Near(right(TOKENS), 0.5)
    yield Case(f"rank of A, {where}", measured, document=AtMost(bound), right=right_rank, at=d, group=ATTENTION)


def extremes() -> Iterator[Case]:
    """Full focus can have full rank or rank 1; uniform attention has rank 1."""
    own, same = torch.arange(TOKENS), torch.zeros(TOKENS, dtype=torch.long)
    for name, favorites, strength, expected in (
        ("every query on its own key", own, 40.0, TOKENS),
        ("every query on the same key", same, 40.0, 1),
        ("every query on all keys uniformly", own, 0.0, 1),
    ):
        measured = exactly(float(effective_rank(peaked_attention(favorites, strength))))
        yield Case(f"effective rank, {name}", measured, right=Near(expected, 1e-3))


def trained(trial: Trial) -> Iterator[Case]:
    """Repeat both measurements on all heads of DeiT-Tiny: 197 tokens, d = 64."""
    heads = trained_heads(trial, trial.choose(1, 8))
    found = [torch.stack([*focus(a), rank(a).double()]) for a in heads]
    keys, effective, numerical = torch.stack(found).mean(dim=0).numpy()
    measured, bound = bootstrap(numerical, lambda values: float(values.mean())), document(197, 64)
    yield Case("rank of A in DeiT-Tiny, 197 tokens, d = 64", measured, document=AtMost(bound), right=AtLeast(bound + 1))
    measured = bootstrap(np.stack([keys, effective], axis=1), correlation)
    yield Case(
        "correlation of effective rank with keys attended to, DeiT-Tiny's heads", measured, document=AtLeast(0.0)
    )
    trial.keep("trained keys", keys)
    trial.keep("trained ranks", effective)


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot ranks against the bound (left) and focus against effective rank (right)."""
    figure, (bound, sense) = side_by_side(2, width=5.4, height=3.0)
    draw_bound(bound, [case for case in outcome.cases if case.at is not None])
    names = (("", "random, low to high temperature"), ("trained ", "DeiT-Tiny, one dot per head"))
    for (prefix, label), (color, _) in zip(names, LINES[1:], strict=False):
        if f"{prefix}keys" in outcome.series:
            sense.plot(outcome.series[f"{prefix}keys"], outcome.series[f"{prefix}ranks"], color=color, label=label,
                       marker="o", markersize=4, linestyle="none" if prefix else "-", linewidth=1)  # fmt: skip
    sense.set(xlabel="keys attended to per query, exp(H)", ylabel="effective rank", xscale="log")
    for axis in (bound, sense):
        style_axis(axis)
        place_legend(axis)
    return figure


def draw_bound(axis: axes.Axes, cases: Sequence[Case]) -> None:
    widths = sorted({int(x_position(case)) for case in cases})
    axis.plot(widths, [document(TOKENS, d) for d in widths], label="the text: at most d", **TEXT_STYLE)
    axis.plot(widths, [right(TOKENS)] * len(widths), label="correct: n", **RIGHT_STYLE)
    for group, color in ((ATTENTION, INK), (LOGITS, "#8a8f98")):
        plot_measurements(axis, [case for case in cases if case.group == group], color, group)
    axis.set(xlabel="head width d", ylabel=f"rank, {TOKENS} tokens", ylim=(0, 70))
