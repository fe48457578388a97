"""What is left of a model's accuracy when the middle of the image is covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.figures import curves
from vitreous.lab.instruments.examined import pooled_accuracy, share_right, unseen
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.sweep import seeds
from vitreous.lab.trained import Trained, trained
from vitreous.lab.trial import Trial
from vitreous.samples import Batch, Inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import Outcome

CLAIM = Claim(
    title="An occluded core",
    statement="A ViT withstands occlusion better than a CNN: where the core of an object is covered, it brings "
    "together what is left on opposite sides, while a CNN's effective field may not span the cover.",
    sources=(Source.PRINCIPLES,),
    formula="",
    right="It is not settled by the architecture. Compared is how much of its own lead over guessing a model keeps, so "
    "that the better one has no head start; with everything covered both must guess.",
    right_formula="",
    meaning="Look at the accuracy itself too: a model that keeps more of a smaller lead may still be right less often. "
    "If covered objects matter, cover parts of the training images (random erasing, CutMix) and measure as here.",
)
CLASSES = 10

Cover = Callable[[int, float, int], Tensor]  # side, covered share, seed → (y, x) of what is hidden


def document() -> float:
    """What a ViT has left, less what a CNN has left, is positive."""
    return 0.0


def right(classes: int) -> float:
    """Of images that all look the same, one class in so many is guessed."""
    return 1 / classes


def core(side: int, share: float, seed: int) -> Tensor:
    """(y, x): True inside a square in the middle."""
    inside = (torch.arange(side) + 0.5 - side / 2).abs() <= side / 2 * share**0.5
    return inside[:, None] & inside


def anywhere(side: int, share: float, seed: int) -> Tensor:
    """(y, x): True in cells of an eighth of the side, chosen by chance: as much, but nothing in particular."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
    chosen = (order < round(64 * share)).view(8, 8)
    return chosen.repeat_interleave(side // 8, 0).repeat_interleave(side // 8, 1)


def accuracy(run: Trained, batch: Batch, cover: Tensor) -> float:
    """Under a cover in the images' mean color, which is 0 after normalization."""
    return share_right(run.model, Batch(Inputs(batch.images.masked_fill(cover, 0.0)), batch.targets))


def left(run: Trained, cover: Cover, shares: Sequence[float], number: int) -> list[float]:
    """(accuracy − chance) / (accuracy uncovered − chance) at each covered share."""
    batch, chance = unseen(run, number), right(CLASSES)
    lead = [accuracy(run, batch, cover(batch.images.shape[-1], each, 0)) - chance for each in (0.0, *shares)]
    return [each / lead[0] for each in lead[1:]]


def cases(trial: Trial) -> Iterator[Case]:
    number, shares = trial.choose(300, 600), trial.choose((0.25, 0.5), (0.1, 0.25, 0.5, 0.75))
    pairs = [[trained(trial, name, seed) for name in ("base", "cnn")] for seed in seeds(trial, "base")]
    trial.keep("covered share", (0.0, *shares))
    for which, kind in enumerate(("ViT", "CNN")):
        runs = [pair[which] for pair in pairs]
        yield Case(f"{kind}: accuracy", pooled_accuracy(runs, number), right=AtLeast(2 * right(CLASSES)))
        blind = sum(accuracy(run, unseen(run, number), torch.tensor(True)) for run in runs) / len(runs)
        yield Case(f"{kind}: accuracy, all covered", exactly(blind), right=Near(right(CLASSES), 0.06))
    for cover, what in ((core, "the core"), (anywhere, "random places")):
        found = [[left(run, cover, shares, number) for run in pair] for pair in pairs]
        for which, kind in enumerate(("ViT", "CNN")):
            means = [sum(values) / len(found) for values in zip(*(pair[which] for pair in found), strict=True)]
            trial.keep(f"{kind}, {what} covered", (1.0, *means))
        for place, share in enumerate(shares if cover is core else ()):
            gap = mean_of([vit[place] - cnn[place] for vit, cnn in found])
            label = f"lead over guessing left with {share:.0%} of the image covered, ViT less CNN"
            yield Case(label, gap, document=AtLeast(document()))


def draw(outcome: Outcome) -> Figure:
    series = dict(outcome.series)
    places = series.pop("covered share")
    names = Axes("covered share of the image", "what is left of the lead over guessing")
    return curves({name: (places, values) for name, values in series.items()}, names)
