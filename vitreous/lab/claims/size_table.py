"""A table of model sizes: its numbers contradict the trends stated about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import LEVEL, Estimate, exactly, mean_of
from vitreous.lab.instruments.counting import forward_flops, power
from vitreous.lab.prediction import AtLeast, AtMost, Near, near
from vitreous.lab.trial import Trial
from vitreous.models import create_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Memory and training time against size",
    statement="A table gives 1.2, 4.1, 8.7 and 22 GB of memory in FP16 and 3, 7, 14 and more than 30 days of training "
    "for ViT-B, L, H and G with 86, 307, 632 and 1,800 million parameters. Memory grows linearly with the parameters, "
    "training time faster than linearly.",
    sources=(Source.PIXELS,),
    formula=r"\mathrm{days} \propto \mathrm{parameters}^k, \; k > 1",
    right="The table's own days, taking more than 30 as 30, grow with a power of about 0.8, and its 13 bytes per "
    "parameter are not FP16 weights, which take two, but closer to the memory of training with Adam. Operations per "
    "image grow in proportion to the parameters; what grows faster is the cost of published models, whose largest "
    "also have smaller patches.",
    right_formula=r"\mathrm{operations} \propto \mathrm{parameters}",
    meaning="At one patch size, expect training cost in proportion to parameters × images, and 16 to 18 bytes per "
    "parameter for AdamW besides the activations. Days without the number of accelerators are meaningless.",
)

MILLIONS = (86, 307, 632, 1800)
GIGABYTES = (1.2, 4.1, 8.7, 22)
DAYS = (3, 7, 14, 30)
#: TPUv3-core-days of pre-training on JFT-300M: Dosovitskiy et al. 2020 (arXiv 2010.11929), table 2.
CORE_DAYS = {"L/16": 680, "H/14": 2500}


def right(parameters: int) -> float:
    """Gigabytes of weights in FP16: two bytes each."""
    return 2 * parameters / 1e9


def fitted(sizes: Sequence[float], values: Sequence[float]) -> Estimate:
    """Exponent of size in ``values``: least squares on logarithms, with a Student's t interval."""
    from scipy.stats import linregress, t

    line = linregress(np.log(sizes), np.log(values))
    margin = float(t.ppf(0.5 + LEVEL / 2, len(sizes) - 2) * line.stderr)
    return Estimate(float(line.slope), float(line.slope) - margin, float(line.slope) + margin, len(sizes))


class Measured(NamedTuple):
    """Parameters, counted operations for an image of 224 pixels, and gigabytes of the weights in FP16."""

    parameters: int
    flops: int
    gigabytes: float


def measure(model: str) -> Measured:
    with torch.device("meta"):
        built = create_model(model)
        flops = forward_flops(built, torch.empty(1, 3, 224, 224))
    parameters = list(built.half().parameters())
    return Measured(sum(p.numel() for p in parameters), flops, sum(p.nbytes for p in parameters) / 1e9)


def growth(small: Measured, large: Measured) -> Estimate:
    """Exponent of the parameters in the operations."""
    return exactly(power(large.parameters / small.parameters, small.flops, large.flops))


def cases(trial: Trial) -> Iterator[Case]:
    yield Case("the table's days: power of the parameters", fitted(MILLIONS, DAYS), AtLeast(1), AtMost(0.95))
    yield Case("the table's memory: power of the parameters", fitted(MILLIONS, GIGABYTES), Near(1, 0.15), Near(1, 0.15))
    bytes_each = mean_of([1e3 * g / m for g, m in zip(GIGABYTES, MILLIONS, strict=True)])
    yield Case("the table's memory: bytes per parameter", bytes_each, right=Near(14, 4))
    base, huge = measure("vit_base_16"), measure("vit_huge_14")
    weights = near(right(base.parameters), share=0.01)
    yield Case("ViT-B's weights in FP16: GB (the table: 1.2)", exactly(base.gigabytes), right=weights)
    for name in trial.choose(quick=("large",), full=("large", "huge", "gigantic")):
        grown = growth(base, measure(f"vit_{name}_16"))
        label = f"operations counted, B/16 to {name[0].upper()}/16: power of the parameters"
        yield Case(label, grown, AtLeast(1.02), Near(1, 0.05))
    smaller_patches = growth(base, huge)
    label = "operations counted, B/16 to H/14: power of the parameters"
    yield Case(label, smaller_patches, AtLeast(1.02), AtLeast(1.05))
    spent = exactly(power(632 / 307, CORE_DAYS["L/16"], CORE_DAYS["H/14"]))
    yield Case("TPU-core-days published, L/16 to H/14: power of the parameters", spent, AtLeast(1.02))


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot exponents only: bytes have another scale."""
    from vitreous.lab.figures import plot_rows

    return plot_rows([case for case in outcome.cases if "power" in case.label])
