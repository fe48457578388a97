"""What is left of a model's accuracy when the middle of the picture is covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import mean_of
from vitreous.lab.examined import share_right, unseen
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.sweep import Trained, seeds, trained
from vitreous.lab.trial import Trial
from vitreous.spec import Batch

CLAIM = Claim(
    title="An occluded core",
    statement="A ViT withstands occlusion better than a CNN: where the core of an object is covered, it brings together "
    "what is left on opposite sides, while a CNN's effective field may not span the cover.",
    sources=(Source.PRINCIPLES,),
    formula="",
    right="It is not settled by the architecture. Compared is how much of its own lead over guessing a model keeps, so that "
    "the better one has no head start; with everything covered both must guess.",
    right_formula="",
    meaning="Being a transformer is no insurance against occlusion. If covered objects matter, cover parts of the "
    "training pictures (random erasing, CutMix), and measure accuracy against the covered share as here.",
    axes=Axes("covered share of the picture", "what is left of the lead over guessing"),
)
CLASSES = 10

Cover = Callable[[int, float, int], Tensor]  # side, covered share, seed → (y, x) of what is hidden


def document() -> float:
    """What a ViT has left, less what a CNN has left, is positive."""
    return 0.0


def right(classes: int) -> float:
    """Of pictures that all look the same, one class in so many is guessed."""
    return 1 / classes


def core(side: int, share: float, seed: int) -> Tensor:
    """(y, x): True inside a square in the middle."""
    inside = (torch.arange(side) + 0.5 - side / 2).abs() <= side / 2 * share**0.5
    return inside[:, None] & inside


def anywhere(side: int, share: float, seed: int) -> Tensor:
    """(y, x): True in cells of an eighth of the side, chosen by chance: as much is covered, but nothing in particular."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
    chosen = (order < round(64 * share)).view(8, 8)
    return chosen.repeat_interleave(side // 8, 0).repeat_interleave(side // 8, 1)


def accuracy(run: Trained, batch: Batch, cover: Tensor) -> float:
    """Under a cover in the pictures' mean colour, which is 0 after normalisation."""
    return share_right(run.model, Batch(batch.images.masked_fill(cover, 0.0), batch.targets))


def left(run: Trained, cover: Cover, shares: Sequence[float], number: int) -> list[float]:
    """(accuracy − chance) / (accuracy uncovered − chance) at each covered share."""
    batch, chance = unseen(run, number), right(CLASSES)
    lead = [accuracy(run, batch, cover(batch.images.shape[-1], each, 0)) - chance for each in (0.0, *shares)]
    return [each / lead[0] for each in lead[1:]]


def cases(trial: Trial) -> Iterator[Case]:
    number, shares = trial.choose(300, 2000), trial.choose((0.25, 0.5), (0.1, 0.25, 0.5, 0.75))
    pairs = [[trained(trial, name, seed) for name in ("base", "cnn")] for seed in seeds(trial, "base")]
    yield from sanity(pairs, number)
    for cover, what in ((core, "the core"), (anywhere, "random places")):
        found = [[left(run, cover, shares, number) for run in pair] for pair in pairs]
        for which, kind in enumerate(("ViT", "CNN")):
            for place, share in enumerate(shares):
                values = [pair[which][place] for pair in found]
                group = f"{kind}, {what} covered"
                yield Case(f"{group}: {share:.0%}", mean_of(values), right=AtMost(1.2), at=share, group=group)
        for place, share in enumerate(shares):
            gaps = [vit[place] - cnn[place] for vit, cnn in found]
            says = AtLeast(document()) if cover is core else None
            yield Case(f"ViT less CNN, {share:.0%} of {what} covered", mean_of(gaps), document=says, right=Near(0, 1))


def sanity(pairs: list[list[Trained]], number: int) -> Iterator[Case]:
    for which, kind in enumerate(("ViT", "CNN")):
        runs = [pair[which] for pair in pairs]
        side = runs[0].recipe.model.image_size[0]
        for share, right_one in ((0.0, AtLeast(2 * right(CLASSES))), (1.0, Near(right(CLASSES), 0.06))):
            values = [accuracy(run, unseen(run, number), core(side, share, 0)) for run in runs]
            yield Case(f"{kind}: accuracy, {share:.0%} covered", mean_of(values), right=right_one)
