"""A convolutional stem gives a transformer more tokens than patches do, unless its stride is as large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import counted_macs
from vitreous.lab.prediction import AtMost, near
from vitreous.lab.trial import Trial
from vitreous.models import create_model

CLAIM = Claim(
    title="Tokens after a convolutional stem",
    statement="CvT puts convolutions before the transformer to reduce the number of tokens: two of stride 2, then "
    "twelve blocks of width 768.",
    sources=(Source.MODERN,),
    formula=r"n = \frac{H}{4} \cdot \frac{W}{4}",
    right="The number of tokens follows from the stem's total stride: fewer than pixels, but not fewer than "
    "patches. Two convolutions of stride 2 leave 3,136 at 224 pixels, sixteen times as many as patches of 16. CvT's "
    "stem does so too; it is affordable because its first stage is narrow, and later stages downsample further.",
    right_formula=r"n_{1/4} = 16 \, n_{1/16}",
    meaning="The model as the text describes it costs twenty-six times as much as ViT-B/16. Count a stem's total "
    "stride, not its layers: convolve down to 1/16, or keep early stages narrow and short as CvT does.",
)
SIDE, PATCH, WIDTH = 224, 16, 768


class Model(NamedTuple):
    name: str
    options: dict[str, Any]


PATCHES, CVT = Model("vit_base_16", {}), Model("cvt_13", {})
TEXT = Model("vit_base_16", {"stem": "conv", "patch_size": 4})
SAME_STRIDE = Model("vit_base_16", {"stem": "conv"})


def tokens(stride: int) -> float:
    """Number of tokens relative to patches of 16."""
    return (PATCH / stride) ** 2


def macs(stride: int) -> float:
    """MACs of twelve blocks relative to patches of 16, with 12nd² + 2n²d per block."""
    one, other = ((SIDE // step) ** 2 for step in (stride, PATCH))
    return one * (6 * WIDTH + one) / (other * (6 * WIDTH + other))


def token_counts(model: Model) -> list[int]:
    """Number of tokens of every feature map, from fine to coarse, computed on the meta device."""
    with torch.device("meta"), torch.no_grad():
        maps = create_model(model.name, **model.options).features(torch.empty(1, 3, SIDE, SIDE)).maps
    return [found.values.shape[2] * found.values.shape[3] for found in maps]


def cost(model: Model) -> int:
    """MACs of the whole model."""
    return counted_macs(model.name, SIDE, **model.options)[""]


def cases(trial: Trial) -> Iterator[Case]:
    (usual,), (of_the_text,) = token_counts(PATCHES), token_counts(TEXT)
    first, *_, last = token_counts(CVT)
    yield Case("the text's stem: tokens ÷ pixels", exactly(of_the_text / SIDE**2),
               document=AtMost(1.0), right=near(tokens(4) / PATCH**2, share=0.01))  # fmt: skip
    for name, count, stride, is_claimed in (
        ("the text's stem", of_the_text, 4, True),
        ("CvT-13's stem", first, 4, True),
        ("CvT-13's last stage", last, 16, False),
        ("a convolutional stem of stride 16", token_counts(SAME_STRIDE)[0], 16, False),
    ):
        yield Case(
            f"{name}: tokens, in units of ViT-B/16's",
            exactly(count / usual),
            document=AtMost(1.0) if is_claimed else None,
            right=near(tokens(stride), share=0.01),
        )
    yield Case("the text's model: MACs, in units of ViT-B/16's", exactly(cost(TEXT) / cost(PATCHES)),
               right=near(macs(4), share=0.05))  # fmt: skip
    yield Case("CvT-13: MACs, in units of ViT-B/16's", exactly(cost(CVT) / cost(PATCHES)), right=AtMost(0.5))
