"""A table of model sizes: its own numbers contradict what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.counting import forward_flops, power
from vitreous.lab.estimate import LEVEL, Estimate, exactly, mean_of
from vitreous.lab.prediction import AtLeast, AtMost, Near, near
from vitreous.lab.trial import Trial
from vitreous.models import create_model

CLAIM = Claim(
    title="Memory and training time against size",
    statement="A table gives 1.2, 4.1, 8.7 and 22 GB of memory in FP16 and 3, 7, 14 and more than 30 days of training "
    "for ViT-B, L, H and G with 86, 307, 632 and 1,800 million parameters. Memory grows linearly with the parameters, "
    "training time faster than linearly.",
    sources=(Source.PIXELS,),
    formula=r"\mathrm{days} \propto \mathrm{parameters}^k, \; k > 1",
    right="In the table itself days grow with a power of about 0.8, and 13 bytes a parameter are no FP16 weights, which "
    "take two: they are nearer to what training with Adam holds. Operations for a picture grow in proportion to the "
    "parameters; what grows faster is the cost of the published models, whose largest also have smaller patches.",
    right_formula=r"\mathrm{days} \propto \mathrm{parameters}^{0.8}",
    meaning="At one patch size, reckon with training cost in proportion to parameters × pictures, and with 16 to 18 "
    "bytes a parameter for AdamW beside the activations. Days without the number of chips tell nothing.",
)

MILLIONS = (86, 307, 632, 1800)
GIGABYTES = (1.2, 4.1, 8.7, 22)
DAYS = (3, 7, 14, 30)
#: TPUv3-core-days of pre-training on JFT-300M: Dosovitskiy et al. 2020 (arXiv 2010.11929), table 2.
CORE_DAYS = {"L/16": 680, "H/14": 2500}


def document(millions: float) -> float:
    """Gigabytes "in FP16", from the table."""
    return dict(zip(MILLIONS, GIGABYTES, strict=True))[millions]


def right(parameters: int) -> float:
    """Gigabytes of weights in FP16: two bytes each."""
    return 2 * parameters / 1e9


def fitted(sizes: Sequence[float], values: Sequence[float]) -> Estimate:
    """The power of size in values, by least squares of the logarithms, with Student's interval."""
    from scipy.stats import linregress, t

    line = linregress(np.log(sizes), np.log(values))
    margin = float(t.ppf(0.5 + LEVEL / 2, len(sizes) - 2) * line.stderr)
    return Estimate(float(line.slope), float(line.slope) - margin, float(line.slope) + margin, len(sizes))


def measure(model: str) -> tuple[int, int, float]:
    """Parameters, counted operations for a picture of 224 pixels, and gigabytes of the weights in FP16."""
    with torch.device("meta"):
        built = create_model(model).half()
        flops = forward_flops(built, torch.empty(1, 3, 224, 224, dtype=torch.float16))
    parameters = list(built.parameters())
    return sum(p.numel() for p in parameters), flops, sum(p.nbytes for p in parameters) / 1e9


def cases(trial: Trial) -> Iterator[Case]:
    yield Case("the table's days: power of the parameters", fitted(MILLIONS, DAYS), AtLeast(1), AtMost(0.95))
    yield Case("the table's memory: power of the parameters", fitted(MILLIONS, GIGABYTES), Near(1, 0.15), Near(1, 0.15))
    bytes_each = mean_of([1e3 * g / m for g, m in zip(GIGABYTES, MILLIONS, strict=True)])
    yield Case("the table's memory: bytes a parameter", bytes_each, Near(2, 0.5), Near(14, 4))
    plain = {name: measure(f"vit_{name}_16") for name in trial.choose(quick=SHORT, full=ALL)}
    parameters, flops, gigabytes = plain["base"]
    yield Case("ViT-B, FP16 weights: GB", exactly(gigabytes), near(document(86), share=0.1), near(right(parameters), share=0.01))
    same_patch = growth([plain[name] for name in plain])
    yield Case("counted operations, patches of 16: power of the parameters", same_patch, AtLeast(1.02), Near(1, 0.05))
    smaller = exactly(power(measure("vit_huge_14")[0] / parameters, flops, measure("vit_huge_14")[1]))
    yield Case("counted operations, B/16 to H/14: power of the parameters", smaller, AtLeast(1.02), Near(1.13, 0.05))
    cost = exactly(power(632 / 307, CORE_DAYS["L/16"], CORE_DAYS["H/14"]))
    yield Case("published TPU-core-days, L/16 to H/14: power of the parameters", cost, AtLeast(1.02))


SHORT, ALL = ("base", "large"), ("base", "large", "huge", "gigantic")


def growth(measured: Sequence[tuple[int, int, float]]) -> Estimate:
    """The power of the parameters in the operations, from the smallest to the largest model."""
    (small, few, _), (large, many, _) = measured[0], measured[-1]
    return exactly(power(large / small, few, many))
