"""Attention's quadratic term is a small share of the usual models, but not at high resolution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vitreous.cost import cost
from vitreous.draw.style import INK
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.figures import TEXT_STYLE, place_legend, plot_over_axis
from vitreous.lab.instruments.counting import counted_macs
from vitreous.lab.prediction import AtLeast, Near, near
from vitreous.lab.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Where the quadratic term dominates",
    statement="The cost of attention grows with the square of the number of tokens. For images of high resolution "
    "the L²D term quickly becomes the bottleneck of the computation.",
    sources=(Source.PRINCIPLES, Source.PIXELS),
    formula=r"2 L^2 D > 4 L D^2 \quad \mathrm{for\ large} \; L",
    right="It is half of the attention alone at N = 2D tokens, as the formula says, and half of the whole block "
    "at N = 6D. ViT-B/16 reaches these at 630 and 1,100 pixels a side; at 384 the term is a ninth of the block. "
    "Narrow models, and small patches, reach them sooner.",
    right_formula=r"\frac{2 N^2 D}{12 N D^2 + 2 N^2 D} = \frac{N}{N + 6D}",
    meaning="Compare your number of tokens with 6D before you turn to windows or linear attention: below that, "
    "most of the compute is in projections and MLPs, which they leave unchanged.",
    axes=Axes("side of the image (pixels)", "share of a block's MACs in the L² term", log="x"),
)
PATCH = 16
HIGH = 768  # pixels per side from which a resolution counts as high
WIDTHS = {"vit_base_16": 768, "vit_tiny_16": 192}
NAMES = {"vit_base_16": "ViT-B/16", "vit_tiny_16": "ViT-Ti/16"}


def document() -> float:
    """Least share of a bottleneck."""
    return 0.5


def right(side: int, width: int) -> float:
    tokens = (side // PATCH) ** 2 + 1
    return tokens / (tokens + 6 * width)


def right_of_attention(side: int, width: int) -> float:
    tokens = (side // PATCH) ** 2 + 1
    return tokens / (tokens + 2 * width)


def right_crossover(width: int) -> float:
    return 6 * width


def cases(trial: Trial) -> Iterator[Case]:
    for model, width in WIDTHS.items():
        for side in trial.choose(quick=(224, 384, 1024), full=(224, 384, 512, 768, 1024, 1536, 2048)):
            macs = counted_macs(model, side, depth=1)
            products = macs["blocks.0.mixer.attend"]
            expected = AtLeast(document()) if side >= HIGH else None
            yield Case(
                f"{NAMES[model]}, {side} px: share of the block",
                exactly(products / macs["blocks.0"]),
                document=expected,
                right=Near(right(side, width), 1e-6),
                at=side,
                group=NAMES[model],
            )
            if side in (384, 1024):
                yield Case(
                    f"{NAMES[model]}, {side} px: share of the attention alone",
                    exactly(products / macs["blocks.0.mixer"]),
                    document=expected,
                    right=Near(right_of_attention(side, width), 1e-6),
                )
    yield from by_vt_cost()


def by_vt_cost() -> Iterator[Case]:
    """Compare with ``vt.cost`` for the whole of ViT-B/16, including stem and classifier."""
    estimate = cost("vit_base_16", 224)
    share = exactly(estimate.quadratic_macs / estimate.macs)
    yield Case("ViT-B/16, 224 px: share of the whole model, by vt.cost", share, right=Near(right(224, 768), 0.002))
    crossover = near(right_crossover(768), share=0.02)
    yield Case("ViT-B/16: tokens at which it is half, by vt.cost", exactly(estimate.crossover_tokens), right=crossover)


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot the default figure with a line at half of the compute."""
    assert CLAIM.axes
    figure = plot_over_axis([case for case in outcome.cases if case.at is not None], CLAIM.axes)
    (axis,) = figure.axes
    axis.axhline(document(), label="the text: a bottleneck", **{**TEXT_STYLE, "color": INK})
    axis.set_ylim(0, 1)
    place_legend(axis)
    return figure
