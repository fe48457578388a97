"""Class token against pooling, learned positions against others: at the size of training and at another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from vitreous.deploy.evaluate import evaluate
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.compare import accuracies, difference, learned
from vitreous.lab.instruments.examined import unseen
from vitreous.lab.prediction import AtLeast, AtMost
from vitreous.lab.trained import Trained, every, trained
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="Class token and learned positions",
    statement="A class token works better than the mean or the maximum of the patch tokens, and learned positions work "
    "slightly better than sinusoidal ones.",
    sources=(Source.DEEP_DIVE, Source.FOUNDATIONS),
    formula=r"\mathrm{class\ token} > \mathrm{mean}, \mathrm{max}; \qquad \mathrm{learned} > \mathrm{sinusoidal}",
    right="Neither is a law. In a short training learned positions are hardly learned (shuffled patches change few "
    "answers), and sine waves, which are there from the start, do better. What is certain: without positions a ViT "
    "cannot tell its patches apart from any rearrangement of them.",
    right_formula="",
    meaning="For a short training from scratch take sine waves; how to pool is not worth a dispute. Where images of "
    "another size will come, measure at that size as well, since learned positions have to be resampled for it.",
)

RIVALS = {
    "mean_pooling": "class token − mean of patches",
    "max_pooling": "class token − maximum of patches",
    "sincos_positions": "learned positions − sine waves",
    "no_positions": "learned positions − none",
}

RESIZED = 2_000  # images


def at_size(run: Trained, share: float) -> float:
    """Accuracy on images resized to ``share`` of what the run was trained on; positions are resampled."""
    height, width = run.recipe.model.image_size
    part = run.valid.subset(np.arange(min(RESIZED, len(run.valid))))
    return evaluate(run.model, part, image_size=(round(share * height), round(share * width))).metrics["accuracy"]


@torch.no_grad()
def changed_by_shuffling(run: Trained) -> float:
    """The share of images that get another answer when their patches are put in another order."""
    images = unseen(run, 200).images
    side = run.model.strides[0][0]
    patches = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # b c y side x side
    shuffled = patches.flip(2).roll(1, dims=4).flatten(4, 5).flatten(2, 3)
    return float((run.model(shuffled).argmax(1) != run.model(images).argmax(1)).float().mean())


def cases(trial: Trial) -> Iterator[Case]:
    rivals = trial.choose(("mean_pooling", "no_positions"), tuple(RIVALS))
    names, images = ("base", *rivals), len(trained(trial, "base").valid)
    same = {name: accuracies(trial, name) for name in names}
    larger = {name: [at_size(run, 1.5) for run in every(trial, name)] for name in names}
    for where, found, number in (("", same, images), (", 1.5 × the size", larger, min(RESIZED, images))):
        for name in rivals:
            gain = difference(found["base"], found[name], among=list(found.values()), images=number)
            yield Case(f"{RIVALS[name]}{where}", gain, document=AtLeast(0.0))
    blind, seeing = (changed_by_shuffling(trained(trial, name)) for name in ("no_positions", "base"))
    yield Case("no positions: answers changed by shuffled patches", exactly(blind), right=AtMost(0.01))
    yield Case("learned positions: answers changed by shuffled patches", exactly(seeing), right=AtLeast(0.02))
    yield learned(trained(trial, "base"), "the base run")
