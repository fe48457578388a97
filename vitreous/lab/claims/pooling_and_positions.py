"""Class token against pooling, learned positions against others, at the training resolution and at another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from vitreous.deploy.evaluate import evaluate
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.compare import above_chance, accuracies, difference
from vitreous.lab.instruments.run_evaluation import validation_batch
from vitreous.lab.prediction import AtLeast, AtMost
from vitreous.lab.trained import Trained, trained_run, trained_runs
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="Class token and learned positions",
    statement="A class token works better than the mean or the maximum of the patch tokens, and learned positions work "
    "slightly better than sinusoidal ones.",
    sources=(Source.DEEP_DIVE, Source.FOUNDATIONS),
    formula=r"\mathrm{class\ token} > \mathrm{mean}, \mathrm{max}; \qquad \mathrm{learned} > \mathrm{sinusoidal}",
    right="Neither is a law. In a short training run learned positions are hardly learned (shuffled patches "
    "change few predictions), and sinusoidal ones, which need no learning, do better. What is certain: without "
    "positions a ViT cannot distinguish any arrangement of its patches from another.",
    right_formula="",
    meaning="For a short training run from scratch use sinusoidal positions; the choice of pooling matters little. "
    "Where images of another size will come, evaluate at that size as well, since learned positions have to be "
    "resampled for it.",
)

COMPARISONS = {
    "mean_pooling": "class token − mean of patches",
    "max_pooling": "class token − maximum of patches",
    "sincos_positions": "learned positions − sine waves",
    "no_positions": "learned positions − none",
}

RESIZED = 2_000  # images


def at_size(run: Trained, share: float) -> float:
    """Accuracy on images resized to ``share`` of the training resolution, with resampled positions."""
    height, width = run.recipe.model.image_size
    part = run.valid.subset(np.arange(min(RESIZED, len(run.valid))))
    return evaluate(run.model, part, image_size=(round(share * height), round(share * width))).metrics["accuracy"]


@torch.no_grad()
def changed_by_shuffling(run: Trained) -> float:
    """Share of images whose prediction changes when their patches are permuted."""
    images = validation_batch(run, 200).images
    side = run.model.strides[0][0]
    patches = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # b c y side x side
    shuffled = patches.flip(2).roll(1, dims=4).flatten(4, 5).flatten(2, 3)
    return float((run.model(shuffled).argmax(1) != run.model(images).argmax(1)).float().mean())


def cases(trial: Trial) -> Iterator[Case]:
    alternatives = trial.choose(("mean_pooling", "no_positions"), tuple(COMPARISONS))
    names, images = ("base", *alternatives), len(trained_run(trial, "base").valid)
    same = {name: accuracies(trial, name) for name in names}
    larger = {name: [at_size(run, 1.5) for run in trained_runs(trial, name)] for name in names}
    for where, found, number in (("", same, images), (", 1.5 × the size", larger, min(RESIZED, images))):
        for name in alternatives:
            gain = difference(found["base"], found[name], among=list(found.values()), images=number)
            yield Case(f"{COMPARISONS[name]}{where}", gain, document=AtLeast(0.0))
    no_positions, learned_positions = (
        changed_by_shuffling(trained_run(trial, name)) for name in ("no_positions", "base")
    )
    yield Case("no positions: predictions changed by shuffled patches", exactly(no_positions), right=AtMost(0.01))
    yield Case(
        "learned positions: predictions changed by shuffled patches", exactly(learned_positions), right=AtLeast(0.02)
    )
    yield above_chance(trained_run(trial, "base"), "the base run")
