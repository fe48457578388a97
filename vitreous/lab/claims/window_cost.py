"""Window attention is linear in the cells, and in the cells of a window too; shifting does not change the cost."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import forward_flops, power
from vitreous.lab.prediction import AtMost, Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import SelfAttention
from vitreous.layers.mixer import MixerContext
from vitreous.layers.window import WindowAttention

CLAIM = Claim(
    title="The cost of window attention",
    statement="Attention within windows of M × M cells costs M² · n/M² · d = nd instead of n²d: linear in the number "
    "of cells n. Shifted windows reduce the computation of attention.",
    sources=(Source.FOUNDATIONS, Source.MODERN),
    formula=r"O(M^2 \cdot \frac{n}{M^2} \cdot d) = O(n d)",
    right="There are n/M² windows with M⁴ pairs each: the cost is linear in n and linear in the M² cells of a "
    "window. Windows reduce the cost; shifting them does not reduce it further, it only connects neighboring windows.",
    right_formula=r"O(\frac{n}{M^2} \cdot M^4 \cdot d) = O(n M^2 d)",
    meaning="A window of twice the side makes the attention products four times as expensive, so choose M with "
    "care when you raise the resolution. Shifting is free: rolled and masked, it adds no further product.",
)

DIM, HEADS = 96, 3


def document(n: int, m: int) -> float:
    return m**2 * (n / m**2) * DIM


def right(n: int, m: int) -> float:
    """Multiply-accumulates of both products, queries with keys and weights with values."""
    return 2 * (n / m**2) * m**4 * DIM


def measure(side: int, m: int, *, shifted: bool = False) -> int:
    """FLOPs of the products inside windows, for a map of side × side cells."""
    return counted(WindowAttention(context(side), m, shifted=shifted).to("meta"), side)


def measure_whole(side: int) -> int:
    """FLOPs of the same products with full attention."""
    return counted(SelfAttention(context(side)).to("meta"), side)


def context(side: int) -> MixerContext:
    return MixerContext(dim=DIM, num_heads=HEADS, grid=(side, side))


def counted(attention: torch.nn.Module, side: int) -> int:
    cells = torch.empty(1, side**2, DIM, device="meta")
    return forward_flops(attention, cells, (side, side), part="attend")


def cases(trial: Trial) -> Iterator[Case]:
    for side, m in trial.choose(quick=((28, 7),), full=((28, 7), (48, 12))):
        start, n = measure(side, m), side**2
        name = f"{side} × {side} cells, windows of {m} × {m}"
        yield Case(
            f"{name}: power of the cells n",
            exactly(power(4, start, measure(2 * side, m))),
            document=Near(power(4, document(n, m), document(4 * n, m)), 0.05),
            right=Near(power(4, right(n, m), right(4 * n, m)), 0.05),
        )
        yield Case(
            f"{name}: power of the cells in a window M²",
            exactly(power(4, start, measure(side, 2 * m))),
            document=Near(power(4, document(n, m), document(n, 2 * m)), 0.05),
            right=Near(power(4, right(n, m), right(n, 2 * m)), 0.05),
        )
        whole, moved = measure_whole(side), measure(side, m, shifted=True)
        share = near(right(n, m) / right(n, side), share=0.01)
        yield Case(f"{name}: cost beside full attention", exactly(start / whole), AtMost(0.95), share)
        yield Case(f"{name}: shifted windows beside full attention", exactly(moved / whole), AtMost(0.95), share)
        yield Case(f"{name}: shifted beside not shifted", exactly(moved / start), right=Near(1, 0.01))
