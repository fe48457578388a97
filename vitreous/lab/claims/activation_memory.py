"""Activation memory grows with the square of the number of tokens only where attention weights are stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from vitreous.explain.record import record
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import Memory, power
from vitreous.lab.prediction import Near
from vitreous.lab.trial import Trial
from vitreous.models.vit import ViT, ViTConfig
from vitreous.train import outside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Activation memory and checkpointing",
    statement="In training, the attention matrix of every head and layer must be kept for the backward pass, so memory "
    "grows with the square of the number of tokens (one text: with the square times the width). Activation "
    "checkpointing, which computes the matrix again, makes memory linear in the tokens.",
    sources=(Source.PRINCIPLES, Source.PIXELS, Source.MODERN),
    formula=r"O(n^2) \; \mathrm{or} \; O(n^2 d), \quad \mathrm{checkpointed} \; O(n)",
    right="The matrices hold h·n² entries per layer, whatever the width. Checkpointing makes the memory kept "
    "between the two passes linear; at the peak one layer's matrices are still materialized. Fused attention never "
    "materializes them, so it is linear from the start.",
    right_formula=r"O(h n^2 + n d) \; \mathrm{explicit}, \quad O(n d) \; \mathrm{fused}",
    meaning="Use fused attention first: it removes the quadratic memory without recomputing a block. Checkpointing "
    "then keeps one input per block, and the activations of one block at a time. With explicit attention (to inspect "
    "the weights, say) a single layer can exhaust the memory on a large image, checkpointed or not.",
)


def document(*, explicit: bool, checkpointed: bool, peak: bool) -> float:
    """Exponent of n given by the texts, which consider neither fused attention nor the peak."""
    return 1.0 if checkpointed else 2.0


def right(*, explicit: bool, checkpointed: bool, peak: bool) -> float:
    """Exponent of n, which is 2 only where explicit attention matrices are held."""
    return 2.0 if explicit and (peak or not checkpointed) else 1.0


class Held(NamedTuple):
    """Bytes held between forward and backward pass, and the peak over both."""

    stored: int
    peak: int


def measure(side: int, *, explicit: bool, checkpointed: bool = False, dim: int = 16, heads: int = 8) -> Held:
    """Run one training step of a small ViT on an image of ``side`` × ``side`` tokens."""
    model = small_vit(side, dim, heads)
    if checkpointed:
        outside.checkpoint_blocks(model)
    images = torch.zeros(1, 3, 4 * side, 4 * side)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    preallocated = [images, *model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    recording = record(model, reduce=lambda weights: weights.new_zeros(1)) if explicit else nullcontext()
    with recording, Memory(preallocated) as memory:
        score = model(images).sum()
        stored = memory.now
        score.backward()
    return Held(stored, memory.peak)


def small_vit(side: int, dim: int, heads: int) -> ViT:
    with torch.random.fork_rng(devices=[]):
        return ViTConfig(
            image_size=(4 * side, 4 * side), patch_size=(4, 4), dim=dim, num_heads=heads, depth=3, num_classes=10,
            class_token=False, pool="mean", position="none",
        ).build()  # fmt: skip


def matrices(side: int, *, dim: int, heads: int) -> int:
    """Bytes stored with explicit attention minus those stored with fused attention."""
    return sum(sign * measure(side, explicit=sign > 0, dim=dim, heads=heads).stored for sign in (1, -1))


#: Name → (explicit, checkpointed, at the peak).
MODES = {
    "explicit attention, stored": (True, False, False),
    "explicit and checkpointed, stored": (True, True, False),
    "explicit and checkpointed, at the peak": (True, True, True),
    "fused attention, at the peak": (False, False, True),
}


def cases(trial: Trial) -> Iterator[Case]:
    sides = trial.choose(quick=(12, 24), full=(8, 12, 16, 24, 36))
    trial.keep("tokens", [side**2 for side in sides])
    for name, (explicit, checkpointed, peak) in MODES.items():
        held = [measure(side, explicit=explicit, checkpointed=checkpointed)[peak] for side in sides]
        trial.keep(name, held)
        way = {"explicit": explicit, "checkpointed": checkpointed, "peak": peak}
        yield Case(
            f"{name}: power of n",
            exactly(power((sides[-1] / sides[-2]) ** 2, held[-2], held[-1])),
            document=Near(document(**way), 0.2),
            right=Near(right(**way), 0.2),
        )
    grown = partial(power, 2, matrices(16, dim=16, heads=4))
    wider, more_heads = matrices(16, dim=32, heads=4), matrices(16, dim=16, heads=8)
    yield Case("attention matrices: power of the width d", exactly(grown(wider)), Near(1, 0.2), Near(0, 0.2))
    yield Case("attention matrices: power of the heads h", exactly(grown(more_heads)), right=Near(1, 0.2))


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot megabytes against tokens, with guide lines of slope 1 and 2."""
    from vitreous.draw.style import INK, LINES, side_by_side, style_axis
    from vitreous.lab.figures import place_legend

    figure, (axis,) = side_by_side(1, width=5.8, height=3.4)
    tokens = outcome.series["tokens"]
    for name, (color, dash) in zip(MODES, LINES, strict=False):
        megabytes = [held / 1e6 for held in outcome.series[name]]
        axis.plot(tokens, megabytes, color=color, linestyle=dash, marker="o", markersize=4, label=name)
    for slope, name in ((1, "∝ n"), (2, "∝ n²")):
        start = outcome.series["explicit and checkpointed, stored"][0] / 2e6
        guide = [start * (n / tokens[0]) ** slope for n in tokens]
        axis.plot(tokens, guide, color=INK, linewidth=0.8, linestyle=":")
        axis.annotate(name, (tokens[-1], guide[-1]), (4, 0), textcoords="offset points", color=INK, fontsize=8)
    axis.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="megabytes alive, one image")
    axis.set_xticks(tokens, [f"{n:,.0f}" for n in tokens])
    axis.minorticks_off()
    style_axis(axis)
    place_legend(axis)
    return figure
