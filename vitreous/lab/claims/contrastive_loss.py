"""CLIP's loss asks both ways; a loss that only asks each picture for its caption leaves the way back to luck."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="The contrastive loss of CLIP",
    statement="CLIP's loss is half the cross-entropy of finding, for each picture, its caption among all captions of the "
    "batch.",
    sources=(Source.FOUNDATIONS,),
    formula=r"L = -\frac{1}{2} E \left[ \log \frac{\exp(\mathrm{sim}(v, t_+) / \tau)}"
    r"{\sum_{t'} \exp(\mathrm{sim}(v, t') / \tau)} \right]",
    right="The half belongs to a mean of two such terms: every picture looks for its caption, and every caption for its "
    "picture. With one term alone, a picture that resembles all captions costs nothing.",
    right_formula=r"L = -\frac{1}{2 n} \sum_i \left[ \log \frac{e^{s_{ii} / \tau}}{\sum_j e^{s_{ij} / \tau}} +"
    r" \log \frac{e^{s_{ii} / \tau}}{\sum_j e^{s_{ji} / \tau}} \right]",
    meaning="Use both directions: it costs one more softmax. With cosines the way back suffers little if it is left out, "
    "since no picture can be long; with plain dot products searching pictures by text breaks down.",
)
PAIRS, SHARED, FEATURES, NUISANCES, WIDTH, STEPS = 128, 8, 16, 4, 8, 100
Loss = Callable[[Tensor], Tensor]
Similarity = Callable[[Tensor, Tensor], Tensor]


def one_way(similarities: Tensor) -> Tensor:
    """Rows are pictures, columns captions, partners on the diagonal: what the text writes."""
    return F.cross_entropy(similarities, torch.arange(len(similarities))) / 2


def both_ways(similarities: Tensor) -> Tensor:
    return one_way(similarities) + one_way(similarities.T)


def cosines(pictures: Tensor, captions: Tensor) -> Tensor:
    """At a temperature τ of 0.1."""
    return F.normalize(pictures, dim=1) @ F.normalize(captions, dim=1).T / 0.1


def products(pictures: Tensor, captions: Tensor) -> Tensor:
    return pictures @ captions.T


def pairs(count: int, world: dict[str, Tensor], dice: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features of pictures and captions that tell of the same things; pictures also hold what no caption mentions."""
    things, unsaid = (torch.randn(count, size, generator=dice) for size in (SHARED, NUISANCES))
    pictures, captions = things @ world["seen"] + unsaid @ world["unsaid"], things @ world["said"] + world["habit"]
    noise = 0.3 * torch.randn(2, count, FEATURES, generator=dice)
    return pictures + noise[0], captions + noise[1]


def found(loss: Loss, similarity: Similarity, seed: int) -> tuple[float, float]:
    """Two linear encoders trained with a loss: how often new pictures find their caption, and captions their picture."""
    dice = torch.Generator().manual_seed(seed)
    sizes = {"seen": SHARED, "said": SHARED, "unsaid": NUISANCES, "habit": 1}
    world = {name: torch.randn(size, FEATURES, generator=dice) / size**0.5 for name, size in sizes.items()}
    encoders = [torch.randn(FEATURES, WIDTH, generator=dice).div_(FEATURES**0.5).requires_grad_() for _ in range(2)]
    optimiser = torch.optim.Adam(encoders, lr=0.02)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss(similarity(*encoded(pairs(PAIRS, world, dice), encoders))).backward()
        optimiser.step()
    with torch.no_grad():
        similarities = similarity(*encoded(pairs(4 * PAIRS, world, dice), encoders))
    partner = torch.arange(4 * PAIRS)
    forth, back = (float((similarities.argmax(dim) == partner).double().mean()) for dim in (1, 0))
    return forth, back


def encoded(features: tuple[Tensor, Tensor], encoders: list[Tensor]) -> list[Tensor]:
    return [given @ encoder for given, encoder in zip(features, encoders, strict=True)]


def document(number: int) -> float:
    """The loss of a model that knows nothing: all captions are as likely."""
    return math.log(number) / 2


def right(number: int) -> float:
    return math.log(number)


def cases(trial: Trial) -> Iterator[Case]:
    yield Case(f"loss of {PAIRS} pairs before anything is learned", exactly(both_ways(torch.zeros(PAIRS, PAIRS))),
               document=Near(document(PAIRS), 0.01), right=Near(right(PAIRS), 0.01))  # fmt: skip
    for name, similarity, loses in (("cosines", cosines, False), ("dot products", products, True)):
        alone, both = ([found(loss, similarity, seed) for seed in trial.seeds] for loss in (one_way, both_ways))
        gap = mean_of([two[1] - one[1] for one, two in zip(alone, both, strict=True)])
        yield Case(f"{name}: captions that find their picture, both ways less one way", gap,
                   document=Near(0.0, 0.05), right=AtLeast(0.05) if loses else Near(0.0, 0.1))  # fmt: skip
        yield Case(f"{name}: pictures that find their caption, trained one way",
                   mean_of([forth for forth, _ in alone]), right=AtLeast(0.1))  # fmt: skip
