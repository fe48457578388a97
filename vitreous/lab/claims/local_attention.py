"""Local attention needs a 2-D neighborhood, not a stretch of the sequence, and the mask before the softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.dependence import capture_inputs, dependency_mask
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend
from vitreous.layers.block_sparse import BlockSparse
from vitreous.layers.local import Local, NeighborAttention
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.position import coordinates
from vitreous.layers.window import Window

CLAIM = Claim(
    title="Local attention on a grid",
    statement="Local attention limits every token to its neighborhood: weights of tokens more than w places away in "
    "the sequence are set to zero. Block-sparse attention is a block-diagonal matrix.",
    sources=(Source.FOUNDATIONS,),
    formula=r"A_{ij} = \mathrm{attention}(q_i, k_j) \;\mathrm{if}\; |i-j| \leq w, \;\; 0 \;\mathrm{otherwise}",
    right="Neighbors on a grid differ in rows and columns. Counted along the sequence a token misses those above "
    "and below and includes the far end of the next row. If the zero is set after the softmax, most of a token's "
    "weight is lost; masked before it, weights sum to one. Blocks on the diagonal alone never mix.",
    right_formula=r"A_{ij} \propto \exp(q_i^\top k_j / \sqrt{d}) \;\mathrm{if}\; |y_i - y_j|, |x_i - x_j| \leq w",
    meaning="Mask with −∞ before the softmax and measure distance in rows and columns. A block-diagonal pattern "
    "needs connections across blocks (a shift, neighboring or random blocks), or depth does not extend its reach at "
    "all.",
)
SIDE, BLOCK, RADIUS, WIDTH = 16, 4, 3, 8
CONTEXT = MixerContext(dim=WIDTH, num_heads=1, grid=(SIDE, SIDE))
CELLS = list(range(SIDE**2))


def document(i: Tensor, j: Tensor) -> Tensor:
    """Mask of token pairs that attend to each other."""
    return (i - j).abs() <= RADIUS


def chebyshev_distance(y: Tensor, x: Tensor) -> Tensor:
    """Rows or columns between every two cells, whichever is more."""
    return torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs())


def by_sequence(x: Tensor) -> Tensor:
    """Attention under the text's mask, applied before the softmax."""
    index = torch.arange(x.shape[1])
    return Attend()(x, x, x, mask=document(index[:, None], index))


def pattern(function: Callable[[Tensor], Tensor]) -> tuple[int, float]:
    """Return the distance of the farthest cell attended to, and the share attended to within the radius."""
    attended = dependency_mask(function, torch.randn(len(CELLS), WIDTH, dtype=torch.float64), CELLS)
    distance = chebyshev_distance(*coordinates(CONTEXT.grid, attended.device))
    return int(distance[attended].max()), float(attended[distance <= RADIUS].double().mean())


def stacked(mixer: Mixer, depth: int) -> Callable[[Tensor], Tensor]:
    layers = [mixer.build(replace(CONTEXT, index=index)).double() for index in range(depth)]

    def forward(x: Tensor) -> Tensor:
        for layer in layers:
            x = x + layer(x, CONTEXT.grid)
        return x

    return forward


def sum_of_weights(*, masked_before: bool) -> float:
    """Mean output where every value is 1, which is the sum of the weights."""
    layer = Local(radius=RADIUS).build(CONTEXT)
    assert isinstance(layer, NeighborAttention)
    x = torch.randn(1, len(CELLS), WIDTH)
    if masked_before:
        (q, k, v), options = capture_inputs(layer.attend, lambda: layer(x, CONTEXT.grid))
        return float(layer.attend(q, k, torch.ones_like(v), **options).mean())
    q, k, _ = layer.qkv(x).chunk(3, dim=-1)
    index = torch.arange(len(CELLS))
    return float((Attend().weights(q, k) * document(index[:, None], index)).sum(-1).mean())


def reach(mixer: Mixer, depth: int) -> float:
    """Share of the map that a cell depends on after ``depth`` layers."""
    probes = CELLS[:: SIDE + 1]
    return float(
        dependency_mask(stacked(mixer, depth), torch.randn(len(CELLS), WIDTH).double(), probes).double().mean()
    )


def cases(trial: Trial) -> Iterator[Case]:
    depth = trial.choose(quick=3, full=12)
    with seeded(0), torch.no_grad():
        sums = [sum_of_weights(masked_before=before) for before in (False, True)]
    with seeded(0):
        text, library = pattern(by_sequence), pattern(stacked(Local(radius=RADIUS), 1))
        diagonal, sparse = (
            reach(mixer, depth) for mixer in (Window(size=BLOCK, shift="never"), BlockSparse(block=BLOCK))
        )
    around = f"share attended to of the cells within {RADIUS} rows and columns"
    yield Case("sum of a token's weights, zeroed after the softmax", exactly(sums[0]), right=AtMost(0.2))
    yield Case("sum of a token's weights, the library's", exactly(sums[1]), right=Near(1.0, 1e-5))
    yield Case(f"along the sequence: {around}", exactly(text[1]), right=AtMost(0.3))
    yield Case(f"the library: {around}", exactly(library[1]), right=Near(1.0, 1e-9))
    yield Case("along the sequence: rows or columns to the farthest cell attended to", exactly(text[0]),
               document=AtMost(RADIUS), right=Near(SIDE - 1, 0.5))  # fmt: skip
    yield Case(
        "the library: rows or columns to the farthest cell attended to", exactly(library[0]), right=Near(RADIUS, 0.5)
    )
    yield Case(f"blocks on the diagonal: share of the map reached after {depth} layers", exactly(diagonal),
               right=Near((BLOCK / SIDE) ** 2, 1e-9))  # fmt: skip
    yield Case(f"blocks, their neighbors and some others: share of the map reached after {depth} layers",
               exactly(sparse), right=AtLeast(0.9))  # fmt: skip
