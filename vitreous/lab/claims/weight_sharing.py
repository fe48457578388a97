"""A ViT uses the same weights at every position; only the position embeddings differ."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.dependence import relative_change
from vitreous.lab.instruments.real import deit_tiny, photos
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, Near, near
from vitreous.lab.trial import Trial
from vitreous.models import create_model
from vitreous.models.base import Backbone

CLAIM = Claim(
    title="Weight sharing across the image",
    statement="Convolutional networks share their weights across space. Vision transformers have no spatial sharing.",
    sources=(Source.MODERN,),
    formula="",
    right="Patch projection, attention and MLP are the same at every position; only the position embeddings are "
    "not. Without them, a shift of the image by whole patches permutes the tokens and changes nothing else.",
    right_formula=r"f(\mathrm{shift}(x)) = \mathrm{shift}(f(x))",
    meaning="A ViT's parameters do not grow with the image, except for its position embeddings, which break the "
    "symmetry: change the resolution by resampling them. It lacks a convolution's locality, and its sharing within a "
    "patch: a shift of half a patch gives different tokens.",
)
PATCH, DIM = 8, 32
SHIFT = (2, 3)  # patches down and to the right


def document(factor: int) -> int:
    """Growth of the parameters with the sides, if every position had its own."""
    return factor**2


def effect_of_shift(model: Backbone, images: torch.Tensor, pixels: tuple[int, int], patch: int) -> float:
    """Relative change between the tokens of a cyclically shifted image and the shifted tokens."""
    patches = (round(pixels[0] / patch), round(pixels[1] / patch))
    with torch.no_grad():
        tokens = model.features(images).maps[0].values.roll(patches, dims=(2, 3))
        shifted = model.features(images.roll(pixels, dims=(2, 3))).maps[0].values
    return relative_change(tokens, shifted)


def untrained(position: str, seed: int, share: float = 1.0) -> float:
    """Effect of a shift by ``share`` of ``SHIFT`` patches on an untrained ViT."""
    with seeded(seed):
        model = create_model("vit_tiny_16", image_size=64, patch_size=PATCH, dim=DIM, num_heads=2, depth=3,
                             position=position).eval()  # fmt: skip
        images = torch.randn(2, 3, 64, 64)
    pixels = (round(share * PATCH * SHIFT[0]), round(share * PATCH * SHIFT[1]))
    return effect_of_shift(model, images, pixels, PATCH)


def growth(part: str) -> float:
    """Parameters of ViT-B/16 at 448 pixels over those at 224, in total or of one part."""
    counts = []
    for side in (448, 224):
        with torch.device("meta"):
            model = create_model("vit_base_16", image_size=side)
        counts.append(sum(p.numel() for name, p in model.named_parameters() if name.startswith(part)))
    return counts[0] / counts[1]


def cases(trial: Trial) -> Iterator[Case]:
    yield Case("ViT-B/16, twice the sides: growth of all parameters", exactly(growth("")),
               document=near(document(2), share=0.02), right=near(1.0, share=0.02))  # fmt: skip
    yield Case("ViT-B/16, twice the sides: growth of its positions", exactly(growth("position")),
               document=near(document(2), share=0.02), right=near(document(2), share=0.02))  # fmt: skip
    yield Case("shift by whole patches, no positions: change of the tokens", trial.repeat(partial(untrained, "none")),
               document=AtLeast(0.01), right=Near(0.0, 1e-4))  # fmt: skip
    yield Case("shift by whole patches, learned positions: change of the tokens",
               trial.repeat(partial(untrained, "learned")),
               document=AtLeast(0.01), right=AtLeast(0.003))  # fmt: skip
    yield Case("shift by 1 patch down and 1½ to the right, no positions: change of the tokens",
               trial.repeat(partial(untrained, "none", share=0.5)),
               right=AtLeast(0.1))  # fmt: skip
    if trial.has("weights"):
        model, (images, _) = deit_tiny(trial), photos(trial, trial.choose(4, 32))
        yield Case("shift by whole patches, trained DeiT-Tiny: change of the tokens",
                   exactly(effect_of_shift(model, images, (32, 48), 16)),
                   document=AtLeast(0.01), right=AtLeast(0.01))  # fmt: skip
