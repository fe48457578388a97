"""Deformable attention comes in two kinds: points of a query's own, never compared with it, or shared ones that are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.chance import seeded
from vitreous.lab.instruments.dependence import given_to
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Seam
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
    right="No published kind does both. In Deformable DETR's every query has points of its own, but no key is looked "
    "at: weights follow from the query alone, through a softmax, which the code lacks. In DAT's the query is compared "
    "with keys, but all queries share their points.",
    right_formula="",
    meaning="Choose DETR's kind for few queries on large maps: it costs the same whatever their size. Choose DAT's "
    "where the content must decide how much is taken. In either keep the softmax: without it, brightness depends on "
    "the weights' sum.",
)
SIDE, WIDTH = 8, 32
CONTEXT = MixerContext(dim=WIDTH, num_heads=4, grid=(SIDE, SIDE))


@dataclass(frozen=True)
class Kind:
    """One of the library's mixers, with the names of the part that weighs points and of that which makes their keys."""

    mixer: Mixer
    attend: str
    makes_keys: str


DETR, DAT = Kind(DeformablePoints(), "points.attend", "points.value"), Kind(Deformable(), "attend", "kv")


def build(kind: Kind) -> nn.Module:
    """As after some training: points and weights that depend on the query do not do so from the start."""
    layer = kind.mixer.build(CONTEXT)
    for name in ("points.offsets", "points.weights"):
        if name in dict(layer.named_modules()):
            scramble(layer.get_submodule(name))
    return layer


def scramble(linear: nn.Module) -> None:
    nn.init.normal_(linear.get_parameter("weight"), std=WIDTH**-0.5)


def weights_and_points(kind: Kind, layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """(b, h, queries, points) and (b, groups, queries or 1, points, 2)"""
    attend = layer.get_submodule(kind.attend)
    assert isinstance(attend, Seam)
    given, options = given_to(attend, lambda: layer(x, CONTEXT.grid))
    points = options.pop("layout").points
    return attend.weights(*given[:2], **options), points


def point_sets(kind: Kind, x: Tensor) -> int:
    """How many different sets of points the queries of an image look at."""
    _, points = weights_and_points(kind, build(kind), x)
    return len(points[0, 0].flatten(1).unique(dim=0))


def effect_of_keys(kind: Kind, x: Tensor) -> float:
    """Share of the weights that moves when keys and values are made of the same map by another matrix."""
    layer = build(kind)
    before, _ = weights_and_points(kind, layer, x)
    scramble(layer.get_submodule(kind.makes_keys))
    after, _ = weights_and_points(kind, layer, x)
    return float((after - before).abs().sum(-1).mean() / 2)


def error_on_white(x: Tensor, *, softmax: bool) -> float:
    """How far from 1 a query reads a map that is 1 everywhere, on average."""
    layer = build(DETR)
    attend = layer.get_submodule(DETR.attend)
    assert isinstance(attend, PointAttend)
    (logits, points, values), _ = given_to(attend, lambda: layer(x, CONTEXT.grid))
    inside, white = points.clamp(0.5 / SIDE, 1 - 0.5 / SIDE), torch.ones_like(values)
    look = attend if softmax else attend.mix
    return float((look(logits, inside, white, shapes=[CONTEXT.grid]) - 1).abs().mean())


def measure(look: Callable[[Tensor], float], seed: int) -> float:
    with seeded(seed), torch.no_grad():
        return look(torch.randn(1, SIDE**2, WIDTH))


def cases(trial: Trial) -> Iterator[Case]:
    queries = SIDE**2
    for name, kind, own, compared in (("Deformable DETR's", DETR, queries, False), ("DAT's", DAT, 1, True)):
        yield Case(
            f"{name} kind: sets of points that {queries} queries look at",
            exactly(measure(partial(point_sets, kind), seed=0)),
            document=Near(queries, 0.5),
            right=Near(own, 0.5),
        )
        yield Case(
            f"{name} kind: share of the weights that follows the keys",
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
