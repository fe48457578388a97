"""The smallest object a patch embedding resolves: averaging loses small ones, a matched filter does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import log

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.prediction import near
from vitreous.lab.trial import Trial
from vitreous.layers.patch import PatchEmbed

CLAIM = Claim(
    title="The smallest object a patch resolves",
    statement="A patch of p × p pixels becomes one token, which limits what the model can see: an object of side s "
    "and contrast ΔI in noise of deviation σ lifts the average of its patch by γ deviations only if s reaches s_min. "
    "Larger patches therefore lose small objects.",
    sources=(Source.PRINCIPLES,),
    formula=r"s_{\min} = \sqrt{\gamma \, \sigma \, p \, / \, \Delta I}",
    right="Exact for a projection that averages and an object inside one patch. Where four patches share the "
    "object it must be twice as large; a filter of the object's shape needs γσ/ΔI whatever p is, and a projection to "
    "as many dimensions as the patch has pixels can represent that filter.",
    right_formula=r"s_{\min} = \gamma \, \sigma \, / \, \Delta I \quad \mathrm{(matched\ filter)}",
    meaning="A large patch need not lose small objects: make tokens as wide as their patches have values, D ≥ p²C "
    "(ViT-B/16 has 768 = 16² · 3 exactly), and training can find the filters. Choose smaller patches to localize "
    "objects.",
    axes=Axes("patch side p (pixels)", "smallest object detected (pixels)", log="x"),
)
GAMMA, NOISE, CONTRAST, PATCHES = 3.0, 1.0, 1.0, 1500
READOUT = "best readout of p² numbers"
SIZES = (2, 4, 6, 8, 12, 16, 24, 32, 64)

Readout = Callable[[Tensor, int, int], Tensor]  # images, patch side, object side → one value per image


def document(p: int) -> float:
    return (GAMMA * NOISE * p / CONTRAST) ** 0.5


def across_a_corner(p: int) -> float:
    """Smallest object with a quarter in each patch: it must have four times the area."""
    return 2 * document(p)


def matched_filter(p: int) -> float:
    return GAMMA * NOISE / CONTRAST


def average(images: Tensor, p: int, s: int) -> Tensor:
    """Project the first patch to its mean."""
    return projected(images, torch.full((1, p, p), 1 / p**2))[:, 0]


def filtered(images: Tensor, p: int, s: int) -> Tensor:
    """Project the first patch to the sum of the pixels where the object would be."""
    return projected(images, shape_of(p, s)[None])[:, 0]


def read_from_token(images: Tensor, p: int, s: int) -> Tensor:
    """Project the first patch to p² random features, then apply the best linear readout for this object size."""
    directions = torch.randn(p * p, p, p, generator=torch.Generator().manual_seed(p))
    readout = torch.linalg.solve(directions.flatten(1).T, shape_of(p, s).flatten())
    return projected(images, directions) @ readout


def projected(images: Tensor, filters: Tensor) -> Tensor:
    """Apply the library's patch embedding with these filters (d, p, p) to the first patch."""
    d, p, _ = filters.shape
    with torch.device("meta"):
        embed = PatchEmbed((p, p), 1, d)
    embed.proj.weight, embed.proj.bias = nn.Parameter(filters[:, None]), nn.Parameter(torch.zeros(d))
    with torch.no_grad():
        return embed(images[..., :p, :p])[:, 0]


def shape_of(p: int, s: int, corner: bool = False) -> Tensor:
    """Draw the object asymmetrically, at the right end of the first rows, or across the far corner.

    The asymmetry lets the test detect transposed patches.
    """
    shape = torch.zeros(p, p)
    if corner:
        shape[p - s // 2 :, p - s // 2 :] = 1
    else:
        shape[:s, p - s :] = 1
    return shape


def lift(readout: Readout, noise: Tensor, s: int, corner: bool) -> float:
    """Shift of the readout by an object, in standard deviations of the noise."""
    p = noise.shape[-1]
    without, with_object = readout(noise[0], p, s), readout(noise[1] + CONTRAST * shape_of(p, s, corner), p, s)
    return float((with_object.mean() - without.mean()) / without.std())


def measure(readout: Readout, p: int, corner: bool, seed: int) -> float:
    """Object size at which the lift exceeds γ, interpolated by a power law."""
    sizes = [s for s in SIZES if s <= (2 * p if corner else p)]
    noise = NOISE * torch.randn(2, PATCHES, 1, p, p, generator=torch.Generator().manual_seed(seed))
    lifts = ((s, max(1e-3, lift(readout, noise, s, corner))) for s in sizes)
    for (small, below), (large, above) in pairwise(lifts):
        if above >= GAMMA:
            return small * (large / small) ** (log(GAMMA / below) / log(above / below))
    return float(sizes[-1])


def cases(trial: Trial) -> Iterator[Case]:
    readouts = (
        ("average", document, average, False),
        ("average, object across a corner", across_a_corner, average, True),
        ("filter of the object's shape", matched_filter, filtered, False),
        (READOUT, matched_filter, read_from_token, False),
    )
    for name, right, readout, corner in readouts:
        for p in trial.choose(quick=(8, 16), full=(8, 16, 32)):
            yield Case(
                f"{name}, p = {p}",
                trial.repeat(partial(measure, readout, p, corner)),
                document=near(document(p), share=0.1),
                right=near(right(p), share=0.1),
                at=p if name != READOUT else None,  # its markers would cover the filter's
                group=name,
            )
