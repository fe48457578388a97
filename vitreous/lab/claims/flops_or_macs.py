"""The GFLOPs quoted for ViT-B and ResNet-50 are multiply-accumulates, each of which is two operations."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import forward_flops
from vitreous.lab.prediction import Near, near
from vitreous.lab.trial import Trial
from vitreous.models import create_model

CLAIM = Claim(
    title="FLOPs or multiply-accumulates",
    statement="ResNet-50 has 25.6 million parameters and takes 4.1 GFLOPs for an image, ViT-Base 86 million and 17.6 "
    "GFLOPs: about four times as much computation.",
    sources=(Source.DEEP_DIVE,),
    formula=r"4.1 \; \mathrm{and} \; 17.6 \; \mathrm{GFLOPs}",
    right="These are multiply-accumulates (GMACs). Each is a multiplication and an addition, so floating-point "
    "operations are twice as many. Parameters and the ratio of four are right.",
    right_formula=r"\mathrm{FLOPs} = 2 \, \mathrm{MACs}",
    meaning="Vision papers mostly print MACs and call them FLOPs, while a GPU's peak counts both operations. "
    "Without the factor of two a model appears to reach half of its actual utilization.",
)

#: Quoted in the text: millions of parameters, and "GFLOPs".
QUOTED = {"resnet50": (25.6, 4.1), "vit_base_16": (86.0, 17.6)}
NAMES = {"resnet50": "ResNet-50", "vit_base_16": "ViT-B/16"}


def document(model: str) -> float:
    return QUOTED[model][1]


def right(model: str) -> float:
    """FLOPs if the quoted number counts MACs."""
    return 2 * QUOTED[model][1]


def measure(model: str, side: int = 224) -> tuple[float, float]:
    """Millions of parameters, and counted GFLOPs for one image."""
    with torch.device("meta"):
        built = create_model(model).eval()
        flops = forward_flops(built, torch.empty(1, 3, side, side))
    return sum(parameter.numel() for parameter in built.parameters()) / 1e6, flops / 1e9


def cases(trial: Trial) -> Iterator[Case]:
    counted = {}
    for model, (parameters, _) in QUOTED.items():
        millions, counted[model] = measure(model)
        yield Case(f"{NAMES[model]}: millions of parameters", exactly(millions), document=near(parameters, share=0.01))
        yield Case(
            f"{NAMES[model]} at 224 pixels: GFLOPs",
            exactly(counted[model]),
            document=near(document(model), share=0.02),
            right=near(right(model), share=0.02),
        )
    ratio = exactly(counted["vit_base_16"] / counted["resnet50"])
    yield Case("ViT-B/16 beside ResNet-50: times as much computation", ratio, document=Near(4, 0.5))
