"""Attention costs four times as much for twice the pixels, but sixteen times for twice the side."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import forward_flops
from vitreous.lab.prediction import near
from vitreous.lab.trial import Trial
from vitreous.models import create_model
from vitreous.spec import Size

CLAIM = Claim(
    title="Attention at twice the image size",
    statement="Attention needs every pair of the N = HW/P² patches. Doubling the image size means four times as much "
    "attention computation.",
    sources=(Source.PIXELS,),
    formula=r"(H, W) \rightarrow (2H, 2W): \quad 4 \times",
    right="Twice the side means four times the tokens and sixteen times the part that grows with their square. Four is "
    "right for twice the number of pixels.",
    right_formula=r"(H, W) \rightarrow (2H, 2W): \quad 4 \times \; \mathrm{tokens}, \; 16 \times \; \mathrm{pairs}",
    meaning="Before raising the resolution, check which part grows: a whole ViT-B/16 costs four and a half times "
    "as much at 448 pixels, because most of it is linear in the tokens; explicit attention matrices take sixteen "
    "times the memory, and from there on the quadratic part dominates.",
)

DIM = 768


def document() -> float:
    return 4.0


def right(before: int, after: int) -> float:
    """Growth of the number of pairs between two token counts."""
    return (after / before) ** 2


def right_with_projections(before: int, after: int) -> float:
    """Growth of a whole attention layer, whose four projections are linear in the tokens."""
    return (4 * after * DIM**2 + 2 * after**2 * DIM) / (4 * before * DIM**2 + 2 * before**2 * DIM)


def tokens(size: Size) -> int:
    return 1 + size[0] * size[1] // 16**2


def measure(before: Size, after: Size, part: str) -> float:
    """FLOPs of a part of ViT-B/16's first block, larger image over smaller."""
    small, large = (counted(size, part) for size in (before, after))
    return large / small


def counted(size: Size, part: str) -> int:
    with torch.device("meta"):
        model = create_model("vit_base_16", image_size=size, depth=1)
        return forward_flops(model, torch.empty(1, 3, *size), part=part)


def cases(trial: Trial) -> Iterator[Case]:
    for side in trial.choose(quick=(224,), full=(224, 384)):
        before, doubled, twice_the_pixels = (side, side), (2 * side, 2 * side), (side, 2 * side)
        for after, part, predict, what in (
            (doubled, "blocks.0.mixer.attend", right, "products of all pairs"),
            (doubled, "blocks.0.mixer", right_with_projections, "the whole attention layer"),
            (twice_the_pixels, "blocks.0.mixer.attend", right, "products of all pairs"),
        ):
            yield Case(
                f"{side} × {side} → {after[0]} × {after[1]} pixels: {what}",
                exactly(measure(before, after, part)),
                document=near(document(), share=0.05),
                right=near(predict(tokens(before), tokens(after)), share=0.005),
            )
