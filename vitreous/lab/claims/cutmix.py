"""CutMix pastes a box of one image into another; a weighted mean of two images is MixUp."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from vitreous.data.augment import Augment, Draws
from vitreous.data.mixing import mix
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.prediction import Near
from vitreous.lab.trial import Trial
from vitreous.samples import Classes

CLAIM = Claim(
    title="CutMix and MixUp",
    statement="CutMix makes one image of two as their weighted mean, pixel by pixel, and gives their labels the "
    "same weights λ and 1 − λ, drawn at random.",
    sources=(Source.FOUNDATIONS,),
    formula=r"x = \lambda x_A + (1 - \lambda) x_B, \quad y = \lambda y_A + (1 - \lambda) y_B",
    right="That is MixUp. CutMix takes every pixel unmixed from one image or the other: a box of the second is "
    "pasted into the first, and λ is the share of the first that remains once the box has been clipped at the border.",
    right_formula=r"x = M \odot x_A + (1 - M) \odot x_B, \quad \lambda = \mathrm{mean}(M), \quad M \in \{0, 1\}",
    meaning="The two are not interchangeable: MixUp fades both objects, CutMix hides a part of one and keeps full "
    "contrast. Compute λ from the box that was actually pasted: the sampled λ promises 50 % of the other image on "
    "average, but a box centered anywhere in the image covers 32 %.",
)
AUGMENT = {"cutmix": Augment(cutmix=1.0), "mixup": Augment(mixup=1.0)}
PAIRS = 300
SIDE = 48


def whole_pixels_of_a_mean() -> float:
    """Share of unmixed pixels in a mean of two different colors: it is neither of them."""
    return 0.0


def whole_pixels_of_a_paste() -> float:
    return 1.0


def share_as_drawn() -> float:
    """Mean of 1 − λ with λ from Beta(1, 1)."""
    return 0.5


def share_in_a_clipped_box() -> float:
    """Mean area of a box clipped at the border, as a share of the image.

    A box with sides √u of the image's and a center anywhere keeps s − s²/4 of a side s, s = √u. The mean of (√u − u/4)²
    over u in [0, 1] is 1/2 − 1/5 + 1/48.
    """
    return 1 / 2 - 1 / 5 + 1 / 48


def mixed(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Mix black images with white ones; return the pixels and the share of white in each label."""
    white = torch.zeros(2 * PAIRS)
    white[1::2] = 1
    images = white[:, None, None, None].expand(-1, 1, SIDE, SIDE).contiguous()
    draws = Draws.sample(seed, 0, 0, len(white))
    pixels, targets = mix(images, Classes(torch.stack([1 - white, white], dim=1)), AUGMENT[kind], draws)
    assert isinstance(targets, Classes)
    return pixels[::2, 0], targets.values[::2, 1]


def whole_pixels(kind: str, seed: int) -> float:
    """Share of pixels that are black or white."""
    pixels, _ = mixed(kind, seed)
    return float(((pixels == 0) | (pixels == 1)).double().mean())


def white_in_the_label(seed: int) -> float:
    return float(mixed("cutmix", seed)[1].double().mean())


def exact_labels(kind: str, seed: int) -> float:
    """Share of images whose label matches the share of white among their pixels."""
    pixels, labels = mixed(kind, seed)
    return float(((labels - pixels.mean(dim=(1, 2))).abs() < 1e-4).double().mean())


def cases(trial: Trial) -> Iterator[Case]:
    mean, paste = whole_pixels_of_a_mean(), whole_pixels_of_a_paste()
    yield Case("CutMix: pixels that come unmixed from one image", trial.repeat(partial(whole_pixels, "cutmix")),
               document=Near(mean, 0.01), right=Near(paste, 0.01))  # fmt: skip
    yield Case("MixUp: pixels that come unmixed from one image", trial.repeat(partial(whole_pixels, "mixup")),
               right=Near(mean, 0.01))  # fmt: skip
    yield Case("CutMix: share of the other image in the label", trial.repeat(white_in_the_label),
               document=Near(share_as_drawn(), 0.05), right=Near(share_in_a_clipped_box(), 0.05))  # fmt: skip
    for kind, name in (("cutmix", "CutMix"), ("mixup", "MixUp")):
        yield Case(f"{name}: labels that match the shares of the pixels",
                   trial.repeat(partial(exact_labels, kind)), right=Near(1.0, 0.01))  # fmt: skip
