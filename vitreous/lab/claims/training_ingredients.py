"""Accuracy lost in training without residuals, AdamW, clipping, GELU or regularization."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import Estimate, exactly
from vitreous.lab.instruments.compare import above_chance, accuracies, difference
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, AtMost
from vitreous.lab.sweep import without_residuals
from vitreous.lab.trained import trained_run
from vitreous.lab.trial import Trial
from vitreous.models.base import Backbone
from vitreous.models.vit import ViTConfig

CLAIM = Claim(
    title="What training requires",
    statement="Without residual connections the gradients of a 12-layer Transformer vanish. ViTs need AdamW rather "
    "than SGD, clipped gradients, GELU rather than ReLU, and heavy regularization, without which they overfit.",
    sources=(Source.DEEP_DIVE, Source.FOUNDATIONS, Source.MODERN),
    formula="",
    right="Residuals matter most, for another reason: the norms preserve gradients without them, but attention "
    "averages the tokens of an image until all are the same. The other ingredients are matters of degree that only an "
    "ablation can settle, and their effect depends on depth, data and length of training.",
    right_formula="",
    meaning="Keep the residuals and AdamW; clip, since it costs nothing. Add regularization when overfitting "
    "shows, not before: in a short training run the heaviest recipe costs more than it gains.",
)

#: Label of each comparison → runs with the ingredient, runs without it.
INGREDIENTS = {
    "residuals − none": ("base", "no_residual"),
    "AdamW − SGD": ("base", "sgd"),
    "clipping − none": ("base", "no_clipping"),
    "GELU − ReLU": ("base", "relu"),
    "heavy regularization − none, 2,000 images": ("heavy_some", "bare_some"),
}


def untrained_vit(depth: int, seed: int) -> Backbone:
    with seeded(seed):
        return ViTConfig(
            image_size=(32, 32), patch_size=(8, 8), dim=64, depth=depth, num_heads=4, num_classes=10
        ).build()


def without_residual(depth: int, seed: int) -> Backbone:
    model = untrained_vit(depth, seed)
    without_residuals(model)
    return model


def first_to_last(model: Backbone, seed: int) -> float:
    """log₁₀ of the gradient norm of the first block over that of the last."""
    draws = torch.Generator().manual_seed(seed)
    images, targets = torch.randn(16, 3, 32, 32, generator=draws), torch.randint(10, (16,), generator=draws)
    F.cross_entropy(model(images), targets).backward()
    first, *_, last = model.blocks
    lengths = [
        torch.cat([p.grad.flatten() for p in block.parameters() if p.grad is not None]).norm()
        for block in (first, last)
    ]
    return float(torch.log10(lengths[0] / lengths[1]))


@torch.no_grad()
def similarity(model: Backbone, seed: int) -> float:
    """Mean cosine between two tokens of an image, after the last block."""
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    tokens = F.normalize(model.features(images).tokens, dim=2)
    return float((tokens @ tokens.transpose(1, 2)).mean())


def at_the_start(
    trial: Trial, build: Callable[[int, int], Backbone], measure: Callable[[Backbone, int], float]
) -> Estimate:
    """Measure untrained models of twelve blocks."""
    return trial.repeat(lambda seed: measure(build(12, seed), seed), range(4))


def cases(trial: Trial) -> Iterator[Case]:
    vanishing, alive = (at_the_start(trial, build, first_to_last) for build in (without_residual, untrained_vit))
    yield Case("no residuals: log₁₀ gradient of block 1 / of block 12", vanishing, document=AtMost(-1.0))
    yield Case("residuals: log₁₀ gradient of block 1 / of block 12", alive, right=AtLeast(-0.5))
    same, different = (at_the_start(trial, build, similarity) for build in (without_residual, untrained_vit))
    yield Case("no residuals: cosine between an image's tokens", same, right=AtLeast(0.99))
    yield Case("residuals: cosine between an image's tokens", different, right=AtMost(0.8))
    chosen = dict(list(INGREDIENTS.items())[: trial.choose(2, len(INGREDIENTS))])
    found = {name: accuracies(trial, name) for name in dict.fromkeys(n for both in chosen.values() for n in both)}
    images = len(trained_run(trial, "base").valid)
    for label, (with_it, without_it) in chosen.items():
        gain = difference(found[with_it], found[without_it], among=list(found.values()), images=images)
        yield Case(f"accuracy: {label}", gain, document=AtLeast(0.0))
    if not trial.quick:
        run = trained_run(trial, "bare_some")
        overfitted = exactly(run.train_accuracy - run.accuracy)
        yield Case("no regularization, 2,000 images: generalization gap", overfitted, document=AtLeast(0.1))
    yield above_chance(trained_run(trial, "base"), "the base run")
