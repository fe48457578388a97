"""Accuracies quoted for ViT sizes come from different data, resolutions and recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly
from vitreous.lab.instruments.photo_predictions import match_ordered_classes, predict_photos
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.trial import Trial
from vitreous.weights import accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Accuracies quoted for ViT",
    statement="On ImageNet, ViT-B/16 reaches 77.9 % after training on JFT-300M, ViT-L/16 85.2 %, ViT-H/14 88.5 %, and "
    "ViT-G/14 90.1 % with JFT-3B. Another text gives about 72, 80, 85 and 88 % for the sizes Ti, S, B and L.",
    sources=(Source.PIXELS, Source.DEEP_DIVE, Source.MODERN),
    formula="",
    right="77.9 is ViT-B/16 trained on ImageNet-1k alone, 85.2 is ViT-L/16 pretrained on ImageNet-21k; with "
    "JFT-300M they reach 84.2 and 87.1. The other text's first two numbers are DeiT's, the rest come from other data. "
    "None of these models can be trained here: the published numbers replace a measurement, and one model is measured "
    "at several resolutions.",
    right_formula="",
    meaning="An accuracy without its data, resolution and recipe means little: one architecture spans seven points. "
    "Compare models only within one source that measured them under equal conditions, and test at the resolution you "
    "will use.",
)

#: Dosovitskiy et al. 2020 (arXiv 2010.11929): table 5, fine-tuned at 384 pixels; ViT-H from table 2, at 518.
#: ViT-G: Zhai et al. 2021 (arXiv 2106.04560).
PAPERS = {
    ("ViT-B/16", "ImageNet-1k"): 77.91,
    ("ViT-B/16", "ImageNet-21k"): 83.97,
    ("ViT-B/16", "JFT-300M"): 84.15,
    ("ViT-L/16", "ImageNet-21k"): 85.15,
    ("ViT-L/16", "JFT-300M"): 87.12,
    ("ViT-H/14", "JFT-300M"): 88.55,
    ("ViT-G/14", "JFT-3B"): 90.45,
}


class Row(NamedTuple):
    """An accuracy quoted for a model, and the training setting it may come from."""

    size: str
    quoted: float
    model: str
    data: accuracy.Data
    pixels: int


ROUGHLY = (
    Row("ViT-Ti", 72, "deit_tiny_16", "in1k", 224),
    Row("ViT-S", 80, "deit_small_16", "in1k", 224),
    Row("ViT-B", 85, "deit_base_16", "in1k", 224),
    Row("ViT-B", 85, "vit_base_16", "in21k", 224),
    Row("ViT-L", 88, "vit_large_16", "in21k", 384),
)
DATA = {"in1k": "ImageNet-1k", "in21k": "ImageNet-21k"}


def document(model: str) -> float:
    """Accuracies that the texts attribute to JFT."""
    return {"ViT-B/16": 77.9, "ViT-L/16": 85.2, "ViT-H/14": 88.5, "ViT-G/14": 90.1}[model]


def right(quoted: float) -> tuple[str, str]:
    """Return the model and training data whose published accuracy is nearest to a quoted number."""
    return min(PAPERS, key=lambda of: abs(PAPERS[of] - quoted))


def published(model: str, data: str, pixels: int) -> list[float]:
    """Look up the accuracy in the library's table: a list of one number, or empty."""
    rows = accuracy.PUBLISHED_ACCURACY
    return [row.top1 for row in rows if (row.model, row.data, row.pixels) == (model, data, pixels)]


def spread(*models: str) -> float:
    """Points between the best and the worst published accuracy of one architecture."""
    numbers = [row.top1 for row in accuracy.PUBLISHED_ACCURACY if row.model in models]
    return max(numbers) - min(numbers)


def cases(trial: Trial) -> Iterator[Case]:
    for (model, data), top1 in PAPERS.items():
        logits = Near(document(model), 0.5) if data.startswith("JFT") else None
        found = Near(document(model), 0.5) if right(document(model)) == (model, data) else None
        if logits or found:
            yield Case(f"{model} from {data}", exactly(top1), logits, found)
    for row in ROUGHLY:
        label = f"{row.size} ({row.model}) from {DATA[row.data]} at {row.pixels} pixels"
        for top1 in published(row.model, row.data, row.pixels):
            yield Case(label, exactly(top1), Near(row.quoted, 1.0))
    points = exactly(spread("vit_base_16", "deit_base_16"))
    yield Case("one architecture, ViT-B/16: best minus worst, points", points, right=AtLeast(5))
    if trial.has("weights", "photos"):
        yield from by_resolution(trial)


def by_resolution(trial: Trial) -> Iterator[Case]:
    """Evaluate DeiT-Tiny on the same photos at 224 pixels and at other resolutions."""
    sizes = trial.choose(quick=(224, 112), full=(224, 112, 160, 288))
    logits = {size: predict_photos(trial, size, count=trial.choose(quick=60, full=300)) for size in sizes}
    summed = np.sum([each for each, _ in logits.values()], axis=0)
    classes = match_ordered_classes(summed, logits[224][1])
    hits = {size: 100.0 * (each.argmax(1) == classes) for size, (each, _) in logits.items()}
    yield Case("DeiT-Tiny on the photos given, at 224 pixels", bootstrap(hits[224], np.mean), right=AtLeast(60))
    for size in sizes[1:]:
        lost = bootstrap(hits[224] - hits[size], np.mean)
        yield Case(f"DeiT-Tiny: points lost at {size} pixels", lost, right=AtLeast(5) if size == 112 else AtLeast(-5))


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot accuracies only: differences have another scale."""
    from vitreous.lab.figures import plot_rows

    return plot_rows([case for case in outcome.cases if "points" not in case.label])
