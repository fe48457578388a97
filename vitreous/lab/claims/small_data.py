"""Compare a convolutional network with a ViT of the same size as the number of training images grows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.compare import above_chance, accuracies, contrast
from vitreous.lab.prediction import AtLeast
from vitreous.lab.trained import Trained, datasets, trained_run
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="Convolutions or attention on small data",
    statement="On small data (fewer than 100,000 images, one million or ten million, depending on the text) CNNs are "
    "better than ViTs, because locality need not be learned; the more images, the smaller their lead.",
    sources=(Source.DEEP_DIVE, Source.FOUNDATIONS, Source.PIXELS, Source.MODERN),
    formula=r"n\ \mathrm{small:}\quad \mathrm{CNN} > \mathrm{ViT}",
    right="Measured here up to 50,000 images, with the same number of steps for all. Where ViTs catch up, the "
    "texts disagree by a factor of a hundred, since it depends on the recipe as much as on the number of images.",
    right_formula="",
    meaning="With thousands of images and no pretrained weights, take a CNN or give a ViT a convolutional stem. "
    "Convolutions also learn faster: in a short training run their lead need not shrink with more data.",
    axes=Axes("training images", "accuracy: CNN − ViT", log="x"),
)


def cases(trial: Trial) -> Iterator[Case]:
    sizes = trial.choose(("_few", ""), ("_few", "_some", "_many", ""))
    vit, cnn = ([accuracies(trial, f"{kind}{size}") for size in sizes] for kind in ("base", "cnn"))
    base = trained_run(trial, "base")
    compared = partial(contrast, among=vit + cnn, images=len(base.valid))
    for size, of_vit, of_cnn in zip(sizes, vit, cnn, strict=True):
        number = learned_from(trained_run(trial, f"base{size}"))
        lead = compared({1: [of_cnn], -1: [of_vit]})
        yield Case(f"{number:,} images: CNN − ViT", lead, document=AtLeast(0.0), at=number)
    shrinks = compared({1: [cnn[0], vit[-1]], -1: [vit[0], cnn[-1]]})
    yield Case("lead with fewest images − lead with most", shrinks, document=AtLeast(0.0))
    few = trained_run(trial, "base_few")
    memorized = exactly(few.train_accuracy - few.accuracy)
    yield Case("fewest images: ViT's training accuracy − accuracy on new images", memorized, right=AtLeast(0.05))
    yield above_chance(base, "the ViT on all images")
    yield above_chance(trained_run(trial, "cnn"), "the CNN on all images")


def learned_from(run: Trained) -> int:
    return len(datasets(run.run, run.recipe, run.trial)[0])
