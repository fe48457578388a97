"""Objects made of two distant halves: attention matches them, a network of local convolutions cannot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import mean_of
from vitreous.lab.instruments.halves import COLORS, gap_widths, gaps, side
from vitreous.lab.instruments.run_evaluation import correct_predictions, pooled_accuracy, validation_batch
from vitreous.lab.prediction import AtLeast, AtMost, Prediction
from vitreous.lab.sweep import run_seeds
from vitreous.lab.trained import Trained, trained_run
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="Objects made of two distant halves",
    statement="Where objects consist of two distant halves, a CNN with local windows inevitably miscounts them, "
    "because it takes each half for an object. A ViT matches the halves across the whole image and counts correctly.",
    sources=(Source.PRINCIPLES,),
    formula="",
    right="A CNN fails where no unit's receptive field covers both halves and the units' outputs are only "
    "summed. Well within its receptive field it matches them too, and more stages, or a layer that mixes the pooled "
    "features, would lift the limit.",
    right_formula="",
    meaning="Compare the distance between related parts with the receptive field of your network. If the field is "
    "smaller, one attention layer, or an MLP after pooling, should do (not measured here).",
    axes=Axes("pixels between the halves", "share of wrong counts"),
)

DISTANT = 0.25  # of the image's side: closer halves do not test the claim


def document(kind: str) -> Prediction:
    """Error expected by the text: large for convolutions, small for attention; chance is one half."""
    return AtMost(0.25) if kind == "ViT" else AtLeast(0.25)


def right(colors: int) -> float:
    """Least error of a network that sums what it detects of either half.

    Its best strategy is to predict "one object" when both colors are among s chosen ones: that finds s of k equal pairs
    and is wrong for s(s − 1) of k(k − 1) unequal ones.
    """
    gains = [s / colors - s * (s - 1) / (colors * (colors - 1)) for s in range(colors + 1)]
    return 0.5 - max(gains) / 2


def control(trial: Trial, kind: str, gap: int) -> Prediction:
    """Control: convolutions match halves that touch, and none beyond every receptive field."""
    nearest, *_, widest = gaps(trial)
    if kind == "CNN" and gap == widest:
        return AtLeast(right(len(COLORS)) - 0.05)
    return AtMost(0.35 if kind == "CNN" and gap == nearest else 0.6)


def errors(trial: Trial, run: Trained) -> list[float]:
    """Share of wrong counts at each gap."""
    mistakes = 1 - correct_predictions(run.model, validation_batch(run, len(run.valid))).numpy()
    gap = gap_widths(trial, len(mistakes))
    return [float(mistakes[gap == each].mean()) for each in np.unique(gap)]


def cases(trial: Trial) -> Iterator[Case]:
    for name, kind in (("halves_vit", "ViT"), ("halves_cnn", "CNN")):
        runs = [trained_run(trial, name, seed) for seed in run_seeds(trial, name)]
        if kind == "ViT":
            yield Case("ViT, share of right counts", pooled_accuracy(runs, len(runs[0].valid)), right=AtLeast(0.65))
        found = [errors(trial, run) for run in runs]
        for gap, values in zip(gaps(trial), zip(*found, strict=True), strict=True):
            yield Case(
                f"{kind}, {gap} pixels apart",
                mean_of(values),
                document=document(kind) if gap >= DISTANT * side(trial) else None,
                right=control(trial, kind, gap),
                at=gap,
                group=kind,
            )
