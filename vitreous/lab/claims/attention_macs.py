"""MACs of one attention layer: 4LD² + 2L²D, if L counts every token and not only the patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vitreous.cost import cost
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import counted_macs
from vitreous.lab.prediction import Near
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="The MACs of attention",
    statement="Multi-head self-attention over L = HW/p² tokens of width D takes 4LD² multiply-accumulates for its "
    "four projections and 2L²D for its two products.",
    sources=(Source.PRINCIPLES,),
    formula=r"4 L D^2 + 2 L^2 D, \quad L = H W / p^2",
    right="Exact to the last operation if every token counts, class token and registers included. The whole "
    "block, with an MLP four times as wide, has three times the projections.",
    right_formula=r"4 N D^2 + 2 N^2 D, \quad \mathrm{block:} \; 12 N D^2 + 2 N^2 D, \quad N = L + \mathrm{prefix}",
    meaning="Good enough for any estimate at 224 pixels. On small images the prefix tokens matter: five of them "
    "beside 16 patches add a third. And it is not the cost of a block: the MLP has two thirds of the projections.",
    axes=Axes("patches L", "MACs counted / the text's formula", log="x"),
)
MODEL, WIDTH, PATCH = "vit_small_16", 384, 16
PREFIXES: dict[str, dict[str, Any]] = {
    "patches only": {"class_token": False, "pool": "mean"},
    "class token": {},
    "class token and 4 registers": {"num_registers": 4},
}


def document(side: int) -> int:
    tokens = (side // PATCH) ** 2
    return 4 * tokens * WIDTH**2 + 2 * tokens**2 * WIDTH


def right(side: int, num_prefix: int) -> int:
    tokens = (side // PATCH) ** 2 + num_prefix
    return 4 * tokens * WIDTH**2 + 2 * tokens**2 * WIDTH


def right_block(side: int, num_prefix: int) -> int:
    tokens = (side // PATCH) ** 2 + num_prefix
    return 12 * tokens * WIDTH**2 + 2 * tokens**2 * WIDTH


def cases(trial: Trial) -> Iterator[Case]:
    for (name, options), num_prefix in zip(PREFIXES.items(), (0, 1, 5), strict=True):
        for side in trial.choose(quick=(64, 224), full=(64, 128, 224, 384, 512)):
            counted = counted_macs(MODEL, side, depth=1, **options)
            yield Case(
                f"attention, {side} px, {name}",
                exactly(counted["blocks.0.mixer"] / document(side)),
                document=Near(1.0, 0.01),
                right=Near(right(side, num_prefix) / document(side), 1e-9),
                at=(side // PATCH) ** 2,
                group=name,
            )
    block = exactly(counted["blocks.0"] / right_block(side, num_prefix))
    yield Case(f"whole block, {side} px, counted / (12ND² + 2N²D)", block, right=Near(1.0, 1e-9))
    estimate = cost(MODEL, side, depth=1, **options)
    mixer = exactly(estimate.parts["mixer"].macs / counted["blocks.0.mixer"])
    yield Case("vt.cost / counted, attention", mixer, right=Near(1.0, 1e-9))
    yield Case("vt.cost / counted, whole model", exactly(estimate.macs / counted[""]), right=Near(1.0, 1e-9))
