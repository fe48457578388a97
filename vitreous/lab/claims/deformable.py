"""Deformable attention: either points per query that are never compared with it, or shared points that are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.dependence import capture_inputs
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import AttentionOp
from vitreous.layers.deformable import Deformable
from vitreous.layers.deformable_points import DeformablePoints, PointAttend
from vitreous.layers.mixer import Mixer, MixerContext

CLAIM = Claim(
    title="Two kinds of deformable attention",
    statement="Every query looks at keys shifted by offsets of its own and is compared with them. In code, offsets "
    "and weights are both predicted from the query by a linear layer, and the weighted sum of what is read is the "
    "output.",
    sources=(Source.FOUNDATIONS, Source.MODERN),
    formula=r"A_{ij} = \mathrm{attention}(q_i, k_{j + \Delta p_{ij}})",
    right="No published variant does both. In Deformable DETR every query has its own points, but no key is "
    "compared: weights follow from the query alone, through a softmax, which the code lacks. In DAT the query is "
    "compared with keys, but all queries share their points.",
    right_formula="",
    meaning="Choose DETR's variant for few queries on large maps: its cost does not depend on their size. Choose "
    "DAT's where the content must decide the weights. In either keep the softmax: without it, the output's magnitude "
    "depends on the sum of the weights.",
)
SIDE, WIDTH = 8, 32
CONTEXT = MixerContext(dim=WIDTH, num_heads=4, grid=(SIDE, SIDE))


@dataclass(frozen=True)
class Kind:
    """A mixer of the library, with the names of its attention op and of the layer that produces its keys."""

    mixer: Mixer
    attend: str
    makes_keys: str


DETR, DAT = Kind(DeformablePoints(), "points.attend", "points.value"), Kind(Deformable(), "attend", "kv")


def build(kind: Kind) -> nn.Module:
    """Build the layer with random offsets and weights, which at initialization do not depend on the query."""
    layer = kind.mixer.build(CONTEXT)
    for name in ("points.offsets", "points.weights"):
        if name in dict(layer.named_modules()):
            randomize(layer.get_submodule(name))
    return layer


def randomize(linear: nn.Module) -> None:
    nn.init.normal_(linear.get_parameter("weight"), std=WIDTH**-0.5)


def weights_and_points(kind: Kind, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights (b, h, queries, points) and points (b, groups, queries or 1, points, 2)."""
    attend = layer.get_submodule(kind.attend)
    assert isinstance(attend, AttentionOp)
    given, options = capture_inputs(attend, lambda: layer(x, CONTEXT.grid))
    points = options.pop("layout").points
    return attend.weights(*given[:2], **options), points


def point_sets(kind: Kind, x: Tensor) -> int:
    """Number of different sets of points that the queries of an image attend to."""
    _, points = weights_and_points(kind, build(kind), x)
    return len(points[0, 0].flatten(1).unique(dim=0))


def effect_of_keys(kind: Kind, x: Tensor) -> float:
    """Share of the weights that changes when keys and values are projected by another matrix."""
    layer = build(kind)
    before, _ = weights_and_points(kind, layer, x)
    randomize(layer.get_submodule(kind.makes_keys))
    after, _ = weights_and_points(kind, layer, x)
    return float((after - before).abs().sum(-1).mean() / 2)


def error_on_white(x: Tensor, *, softmax: bool) -> float:
    """Mean deviation from 1 of the output of a map that is 1 everywhere."""
    layer = build(DETR)
    attend = layer.get_submodule(DETR.attend)
    assert isinstance(attend, PointAttend)
    (logits, points, values), _ = capture_inputs(attend, lambda: layer(x, CONTEXT.grid))
    inside, white = points.clamp(0.5 / SIDE, 1 - 0.5 / SIDE), torch.ones_like(values)
    attend_or_mix = attend if softmax else attend.mix
    return float((attend_or_mix(logits, inside, white, shapes=[CONTEXT.grid]) - 1).abs().mean())


def measure(effect: Callable[[Tensor], float], seed: int) -> float:
    with seeded(seed), torch.no_grad():
        return effect(torch.randn(1, SIDE**2, WIDTH))


def cases(trial: Trial) -> Iterator[Case]:
    queries = SIDE**2
    for name, kind, own, compared in (("Deformable DETR's", DETR, queries, False), ("DAT's", DAT, 1, True)):
        yield Case(
            f"{name} kind: sets of points that {queries} queries attend to",
            exactly(measure(partial(point_sets, kind), seed=0)),
            document=Near(queries, 0.5),
            right=Near(own, 0.5),
        )
        yield Case(
            f"{name} kind: share of the weights that depends on the keys",
            trial.repeat(partial(measure, partial(effect_of_keys, kind))),
            document=AtLeast(0.01),
            right=AtLeast(0.01) if compared else Near(0.0, 1e-9),
        )
    for softmax, name in ((False, "as in the text's code"), (True, "after a softmax")):
        yield Case(
            f"error on a map that is 1 everywhere, weights {name}",
            trial.repeat(partial(measure, partial(error_on_white, softmax=softmax))),
            document=None if softmax else Near(0.0, 0.01),
            right=Near(0.0, 1e-5) if softmax else AtLeast(0.3),
        )
