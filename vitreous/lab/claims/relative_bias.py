"""A relative position bias is added to the scaled logits, so its effect does not depend on the head width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import SelfAttention
from vitreous.layers.mixer import MixerContext
from vitreous.layers.window import WindowAttention

CLAIM = Claim(
    title="Where a relative position bias is added",
    statement="A number R for the offset between two patches is added to the product of query and key, and the sum is "
    "divided by √d before the softmax.",
    sources=(Source.FOUNDATIONS,),
    formula=r"A_{ij} = \mathrm{softmax} \left( \frac{q_i^\top k_j + R_{i-j}}{\sqrt{d}} \right)",
    right="The bias is added after the division, so a bias R changes the logit by R whatever the width of the "
    "head. (Terms that are themselves products with the query, as in the relative embeddings of Shaw et al., belong "
    "inside.)",
    right_formula=r"A_{ij} = \mathrm{softmax} \left( \frac{q_i^\top k_j}{\sqrt{d}} + R_{i-j} \right)",
    meaning="Published tables (Swin, BEiT, CoAtNet) are added outside: read inside √64, each bias has an eighth of "
    "its effect. Trained from scratch, the other form can represent the same, but its biases must grow √d times as "
    "large from gradients √d times as small.",
    axes=Axes("head width d", "change of the logit due to the bias", log="x"),
)
GRID = (2, 2)


def document(bias: float, d: int) -> float:
    return bias / math.sqrt(d)


def right(bias: float, d: int) -> float:
    return bias


def full_attention(d: int) -> SelfAttention:
    return SelfAttention(MixerContext(dim=d, num_heads=1, grid=GRID, position="relative"))


def windows(d: int) -> WindowAttention:
    return WindowAttention(MixerContext(dim=d, num_heads=1, grid=GRID), GRID[0])


@torch.no_grad()
def measure(build: Callable[[int], SelfAttention | WindowAttention], bias: float, d: int) -> float:
    """Change of the logit due to the bias of one offset, recovered from the attention weights.

    Queries and keys are zero and values are the tokens, four unit vectors: the output is the matrix of weights.
    """
    with seeded(0):
        attention = build(d)
    nn.init.zeros_(attention.qkv.weight)
    nn.init.eye_(attention.qkv.weight[2 * d :])
    nn.init.eye_(attention.proj.weight)
    for linear in (attention.qkv, attention.proj):
        nn.init.zeros_(linear.bias)
    assert attention.relative is not None
    nn.init.zeros_(attention.relative.table)
    attention.relative.table[0, attention.relative.table.shape[1] // 2] = bias  # the offset (0, 0): a cell and itself
    weights = attention(torch.eye(4, d)[None], GRID)[0, :, :4]
    return float((weights[0, 0] / weights[0, 1]).log())


def cases(trial: Trial) -> Iterator[Case]:
    for name, build, bias in (
        ("full attention, bias 2", full_attention, 2.0),
        ("window attention, bias 1", windows, 1.0),
    ):
        for d in trial.choose(quick=(16, 64), full=(4, 8, 16, 32, 64, 128)):
            yield Case(
                f"{name}, d = {d}",
                exactly(measure(build, bias, d)),
                document=near(document(bias, d), share=0.05),
                right=near(right(bias, d), share=0.05),
                at=d,
                group=name,
            )
