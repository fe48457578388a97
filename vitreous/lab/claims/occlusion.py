"""Accuracy that remains when the center of the image is covered, ViT against CNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.figures import plot_curves
from vitreous.lab.instruments.run_evaluation import batch_accuracy, pooled_accuracy, validation_batch
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.sweep import run_seeds
from vitreous.lab.trained import Trained, trained_run
from vitreous.lab.trial import Trial
from vitreous.samples import Batch, Inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="An occluded core",
    statement="A ViT withstands occlusion better than a CNN: where the core of an object is covered, it brings "
    "together what is left on opposite sides, while a CNN's effective field may not span the cover.",
    sources=(Source.PRINCIPLES,),
    formula="",
    right="The architecture does not settle it. The comparison uses the share of its lead over chance that a "
    "model keeps, so that the better one has no head start; with everything covered both are at chance level.",
    right_formula="",
    meaning="Compare the accuracies themselves too: a model that keeps more of a smaller lead may still be less "
    "accurate. If covered objects matter, cover parts of the training images (random erasing, CutMix) and measure as "
    "here.",
)
CLASSES = 10

Cover = Callable[[int, float, int], Tensor]  # side, covered share, seed → mask (y, x) of covered pixels


def document() -> float:
    """Lower bound on the ViT's remaining lead minus the CNN's."""
    return 0.0


def right(classes: int) -> float:
    """Chance level, reached when all images look the same."""
    return 1 / classes


def core(side: int, share: float, seed: int) -> Tensor:
    """Mask of a centered square, (y, x)."""
    inside = (torch.arange(side) + 0.5 - side / 2).abs() <= side / 2 * share**0.5
    return inside[:, None] & inside


def anywhere(side: int, share: float, seed: int) -> Tensor:
    """Mask of randomly chosen cells, each an eighth of the side, with the same area, (y, x)."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
    chosen = (order < round(64 * share)).view(8, 8)
    return chosen.repeat_interleave(side // 8, 0).repeat_interleave(side // 8, 1)


def accuracy(run: Trained, batch: Batch, cover: Tensor) -> float:
    """Accuracy with covered pixels set to the mean color, which is 0 after normalization."""
    return batch_accuracy(run.model, Batch(Inputs(batch.images.masked_fill(cover, 0.0)), batch.targets))


def remaining_lead(run: Trained, cover: Cover, shares: Sequence[float], number: int) -> list[float]:
    """(accuracy − chance) / (accuracy uncovered − chance) at each covered share."""
    batch, chance = validation_batch(run, number), right(CLASSES)
    lead = [accuracy(run, batch, cover(batch.images.shape[-1], each, 0)) - chance for each in (0.0, *shares)]
    return [each / lead[0] for each in lead[1:]]


def cases(trial: Trial) -> Iterator[Case]:
    number, shares = trial.choose(300, 600), trial.choose((0.25, 0.5), (0.1, 0.25, 0.5, 0.75))
    pairs = [[trained_run(trial, name, seed) for name in ("base", "cnn")] for seed in run_seeds(trial, "base")]
    trial.keep("covered share", (0.0, *shares))
    for which, kind in enumerate(("ViT", "CNN")):
        runs = [pair[which] for pair in pairs]
        yield Case(f"{kind}: accuracy", pooled_accuracy(runs, number), right=AtLeast(2 * right(CLASSES)))
        all_covered = sum(accuracy(run, validation_batch(run, number), torch.tensor(True)) for run in runs) / len(runs)
        yield Case(f"{kind}: accuracy, all covered", exactly(all_covered), right=Near(right(CLASSES), 0.06))
    for cover, what in ((core, "the core"), (anywhere, "random places")):
        found = [[remaining_lead(run, cover, shares, number) for run in pair] for pair in pairs]
        for which, kind in enumerate(("ViT", "CNN")):
            means = [sum(values) / len(found) for values in zip(*(pair[which] for pair in found), strict=True)]
            trial.keep(f"{kind}, {what} covered", (1.0, *means))
        for index, share in enumerate(shares if cover is core else ()):
            gap = mean_of([vit[index] - cnn[index] for vit, cnn in found])
            label = f"remaining lead over chance with {share:.0%} of the image covered, ViT less CNN"
            yield Case(label, gap, document=AtLeast(document()))


def draw(outcome: ClaimOutcome) -> Figure:
    series = dict(outcome.series)
    covered_shares = series.pop("covered share")
    names = Axes("covered share of the image", "remaining lead over chance")
    return plot_curves({name: (covered_shares, values) for name, values in series.items()}, names)
