"""torch's encoder layer expects (tokens, batch, channels); given the batch first, images attend to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import Estimate, exactly
from vitreous.lab.instruments.dependence import Function, effect_of_others, relative_change
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.trial import Trial
from vitreous.models import create_model

CLAIM = Claim(
    title="Tokens that attend across the batch",
    statement="In a hybrid, and in a transformer over several cameras, features laid out as images × tokens × "
    "channels are given to nn.TransformerEncoder as they are: its layers let an image's tokens attend to each other.",
    sources=(Source.MODERN,),
    formula="",
    right="Without batch_first=True, torch's layers expect tokens × images × channels. Given the batch first, "
    "the tokens at one position of all images attend to each other, and no token attends to another of its own image.",
    right_formula="",
    meaning="Such a model trains and even learns something, but its outputs depend on which images share a batch, "
    "and with a batch of one attention does nothing at all. Test it: change one image, and no other output may change.",
)
IMAGES, TOKENS, WIDTH = 4, 16, 32
#: One small model per family; a quick run tests the first four.
FAMILIES = (
    "vit_tiny_r_s16", "vit_tiny_16", "xcit_nano_12_16", "mobilevit_xxs", "swin_tiny", "dat_tiny", "pvt_tiny",
    "pvt_v2_b0", "cvt_13", "coatnet_0", "convnext_atto", "resnet18", "efficientformer_l1", "fastvit_t8",
    "vit_down_tiny_16",
)  # fmt: skip


def encoder(*, batch_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, dim_feedforward=2 * WIDTH, batch_first=batch_first)
    return nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).eval()


def effect_of_a_token(model: Function, batch: Tensor) -> float:
    """Relative change of an image's other tokens when one token is replaced."""
    changed = batch.clone()
    changed[:, 0] = torch.randn_like(batch[:, 0])
    return relative_change(model(batch)[:, 1:], model(changed)[:, 1:])


@torch.no_grad()
def measure(effect: Callable[[Function, Tensor], float], batch_first: bool, seed: int) -> float:
    with seeded(seed):
        return effect(encoder(batch_first=batch_first), torch.randn(IMAGES, TOKENS, WIDTH))


@torch.no_grad()
def largest_in_library(names: tuple[str, ...]) -> Estimate:
    with seeded(0):
        images = torch.randn(2, 3, 64, 64)
        return exactly(max(effect_of_others(create_model(name, image_size=64).eval(), images) for name in names))


def cases(trial: Trial) -> Iterator[Case]:
    for batch_first, name in ((False, "as in the text"), (True, "with batch_first=True")):
        others = trial.repeat(partial(measure, effect_of_others, batch_first))
        tokens = trial.repeat(partial(measure, effect_of_a_token, batch_first))
        none, some = Near(0.0, 1e-4), AtLeast(0.01)
        yield Case(f"{name}: effect of other images on an image's output", others,
                   document=None if batch_first else none, right=none if batch_first else some)  # fmt: skip
        yield Case(f"{name}: effect of a token on others of its image", tokens,
                   document=None if batch_first else some, right=some if batch_first else none)  # fmt: skip
    names = FAMILIES[: trial.choose(quick=4, full=len(FAMILIES))]
    yield Case(f"the library, {len(names)} families: largest effect of other images", largest_in_library(names),
               right=Near(0.0, 1e-4))  # fmt: skip
