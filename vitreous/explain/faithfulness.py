"""Does an explanation point at what the model uses? Measured by taking that away, and by giving nothing else.

    deletion       p while cells are hidden, the most important first: the faster it falls, the better
    insertion      p while cells are shown on a hidden image, the most important first: it should rise
    faithfulness   area under insertion − area under deletion
    pointing       is the center of the hottest cell on the object?

Curves as in "RISE", Petsiuk et al. 2018 (arXiv 1806.07421); pointing as in "Top-down Neural Attention by Excitation
Backprop", Zhang et al. 2016 (arXiv 1608.00507). Cells are hidden, not pixels, and the same cells for every method, so
that a fine map has no advantage over a coarse one. A half-hidden image is unlike any that the model has learned from,
which moves every curve: so numbers mean little by themselves, and each method is compared with random on the same
images. p is the probability that a score speaks of (``score.py``): for a class, that of a softmax over the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitreous.explain.attribution import METHODS, Method, at_rest, cell_size, methods_for, pairs
from vitreous.explain.score import Score, check_score, probabilities, take
from vitreous.layers.patch import grid_of
from vitreous.models.engine import Engine
from vitreous.options import did_you_mean
from vitreous.spec import Size

THUMBNAIL = 4  # cells each way that a blurred image still shows
FEWEST_IMAGES = 10  # below that an interval of resampled means says too little
RESAMPLES = 2000

#: What is measured, and whether more of it is better.
MEASURES = {"deletion": False, "insertion": True, "faithfulness": True, "pointing": True}
Verdict = Literal["better than random", "no better than random", "worse than random", "too few images to say"]


def gray(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """The mean color of the training images everywhere, which normalization has made 0."""
    return torch.zeros_like(images)


def blur(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """What a thumbnail of 4 × 4 cells, smoothly enlarged, still shows: hidden cells keep their broad color."""
    thumbnail = F.adaptive_avg_pool2d(images, THUMBNAIL)
    return F.interpolate(thumbnail, size=images.shape[2:], mode="bilinear", align_corners=False)


#: What stands in the place of hidden cells.
BASELINES: dict[str, Callable[[Tensor], Tensor]] = {"blur": blur, "gray": gray}


def deletion(
    model: Engine,
    images: Float[Tensor, "b c y x"],
    score: Score,
    heat: Float[Tensor, "b v w"],
    *,
    steps: int = 20,
    baseline: str = "blur",
    cell: Size | None = None,
    batch_size: int = 64,
) -> Float[Tensor, "b points"]:
    """pₖ = p(the k/steps most important cells hidden), k = 0 … steps; of equal cells the first goes first.

    ``cell`` is the size in pixels of what is hidden at a time; None takes that of :func:`cell_size`.
    """
    hidden = chosen_baseline(baseline)(images)
    return curve(model, images, hidden, score, heat, steps=steps, cell=cell, batch_size=batch_size)


def insertion(
    model: Engine,
    images: Float[Tensor, "b c y x"],
    score: Score,
    heat: Float[Tensor, "b v w"],
    *,
    steps: int = 20,
    baseline: str = "blur",
    cell: Size | None = None,
    batch_size: int = 64,
) -> Float[Tensor, "b points"]:
    """pₖ = p(only the k/steps most important cells shown), k = 0 … steps; otherwise as :func:`deletion`."""
    hidden = chosen_baseline(baseline)(images)
    return curve(model, hidden, images, score, heat, steps=steps, cell=cell, batch_size=batch_size)


def auc(curve: Float[Tensor, "b points"]) -> Float[Tensor, " b"]:
    """∫₀¹ p(s) ds by the trapezoid rule, s being the share of cells that have been changed."""
    return (curve[:, :-1] + curve[:, 1:]).mean(dim=1) / 2


def pointing(
    heat: Float[Tensor, "b v w"], masks: Bool[Tensor, "b y x"], *, cell: Size | None = None
) -> Bool[Tensor, " b"]:
    """Is the center of the hottest cell, of equal ones the first, on the object?

    ``cell`` is its size in pixels where the last cells reach beyond the image; None takes the image's sides for
    whole numbers of cells.
    """
    (height, width), (rows, columns) = masks.shape[1:], heat.shape[1:]
    down, across = cell or (height / rows, width / columns)
    hottest = heat.flatten(1).argmax(dim=1)
    y = ((hottest // columns + 0.5) * down).long().clamp(max=height - 1)
    x = ((hottest % columns + 0.5) * across).long().clamp(max=width - 1)
    return masks[torch.arange(len(masks), device=masks.device), y, x]


@dataclass(frozen=True)
class Estimate:
    """A mean over images, and the interval that holds it in 95 of 100 draws of as many images."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Table:
    """What was measured: method → measure → one number per image; everything else follows from these."""

    values: Mapping[str, Mapping[str, NDArray[np.float64]]]
    seed: int = 0

    @property
    def num_images(self) -> int:
        return len(self.values["random"]["faithfulness"])

    def estimate(self, method: str, measure: str = "faithfulness") -> Estimate:
        return bootstrap(self.values[method][measure], self.seed)

    def against(self, method: str, other: str = "random", *, measure: str = "faithfulness") -> Estimate:
        """How far a method lies above another, image by image."""
        return bootstrap(self.values[method][measure] - self.values[other][measure], self.seed)

    def verdict(self, method: str, measure: str = "faithfulness") -> Verdict:
        """By the interval of the paired difference to random: does it lie on one side of 0?"""
        if self.num_images < FEWEST_IMAGES:
            return "too few images to say"
        difference = self.against(method, measure=measure)
        if difference.low <= 0 <= difference.high:
            return "no better than random"
        return "better than random" if (difference.low > 0) == MEASURES[measure] else "worse than random"

    def to_json(self) -> dict[str, Any]:
        return {
            method: {
                measure: asdict(self.estimate(method, measure))
                | {"against_random": asdict(self.against(method, measure=measure))}
                | {"verdict": self.verdict(method, measure)}
                for measure in measured
            }
            for method, measured in self.values.items()
        }


def bootstrap(values: NDArray[np.float64], seed: int = 0) -> Estimate:
    """The mean, and the 2.5 % and 97.5 % quantiles of the means of 2,000 samples drawn with replacement."""
    drawn = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high))


def trust(table: Table) -> str:
    """Which explanation to believe on this model, in a sentence or three."""
    number = table.num_images
    if number < FEWEST_IMAGES:
        few = "One image is" if number == 1 else f"{number} images are"
        return f"{few} too few to say which explanation to trust; give at least {FEWEST_IMAGES}."
    names = sorted((name for name in table.values if name != "random"), key=lambda n: -table.estimate(n).mean)
    verdicts = {name: table.verdict(name) for name in names}
    good = [name for name in names if verdicts[name] == "better than random"]
    sentences = [f"On these {number} images {praise(table, good)}."]
    for verdict in ("no better than random", "worse than random"):
        if found := [name for name in names if verdicts[name] == verdict]:
            sentences.append(f"{verdict.capitalize()}: {', '.join(found)}.")
    return " ".join(sentences)


def praise(table: Table, good: list[str]) -> str:
    """The best of the good ones, and those that cannot be told from it."""
    if not good:
        return "trust none of them"
    best, *others = good
    equal = [name for name in others if table.against(best, name).low <= 0]
    beside = f" or, not clearly behind, {' or '.join(equal)}" if equal else ""
    return (
        f"trust {best}{beside}: its faithfulness is {table.estimate(best).mean:.2f}, "
        f"that of random maps {table.estimate('random').mean:.2f}"
    )


def compare_methods(
    model: Engine,
    images: Float[Tensor, "b c y x"],
    score: Score,
    *,
    methods: Mapping[str, Method] | None = None,
    masks: Bool[Tensor, "b y x"] | None = None,
    seed: int = 0,
    steps: int = 20,
    baseline: str = "blur",
    batch_size: int = 16,
) -> Table:
    """Every method, and random beside them, on the same images: faithfulness, and pointing where masks are known.

    Without ``methods`` those that can serve the model. ``seed`` decides the random maps and the intervals alone.
    """
    given = dict(methods_for(model.model) if methods is None else methods)
    given.setdefault("random", METHODS["random"])
    size = (images.shape[2], images.shape[3])
    parts: dict[str, list[dict[str, Tensor]]] = {name: [] for name in given}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for chosen in torch.arange(len(images)).split(batch_size):
            some, their = images[chosen], take(score, chosen)
            heats = {
                n: on_cells(method(model.model, some, their), size, cell_size(model.model, size))
                for n, method in given.items()
            }
            for name, measured in areas(model, some, their, heats, steps=steps, baseline=baseline).items():
                if masks is not None:
                    measured["pointing"] = pointing(heats[name], masks[chosen])
                parts[name].append(measured)
    return Table({name: joined(part) for name, part in parts.items()}, seed)


def areas(
    model: Engine, images: Tensor, score: Score, heats: Mapping[str, Tensor], *, steps: int, baseline: str
) -> dict[str, dict[str, Float[Tensor, " b"]]]:
    """The areas under both curves of every map. All curves share their ends, which are computed once."""
    hidden = chosen_baseline(baseline)(images)
    whole, nothing = (probability(model, part, score) for part in (images, hidden))
    found = {}
    for name, heat in heats.items():
        falling = auc(curve(model, images, hidden, score, heat, steps=steps, ends=(whole, nothing)))
        rising = auc(curve(model, hidden, images, score, heat, steps=steps, ends=(nothing, whole)))
        found[name] = {"deletion": falling, "insertion": rising, "faithfulness": rising - falling}
    return found


def joined(parts: list[dict[str, Tensor]]) -> dict[str, NDArray[np.float64]]:
    return {name: torch.cat([part[name] for part in parts]).double().cpu().numpy() for name in parts[0]}


def curve(
    model: Engine,
    before: Float[Tensor, "b c y x"],
    after: Float[Tensor, "b c y x"],
    score: Score,
    heat: Float[Tensor, "b v w"],
    *,
    steps: int,
    cell: Size | None = None,
    batch_size: int = 64,
    ends: tuple[Tensor, Tensor] | None = None,
) -> Float[Tensor, "b points"]:
    """p while cells change from ``before`` to ``after`` in ``steps`` equal parts, the hottest first.

    ``ends`` are the first and the last column, where they are known already.
    """
    if steps < 1:
        raise ValueError(f"a curve needs at least 1 step, got steps={steps}")
    first, last = ends or (probability(model, part, score) for part in (before, after))
    size = (before.shape[2], before.shape[3])
    cell = cell or cell_size(model.model, size)
    ranks = ranked(on_cells(heat, size, cell).flatten(1))
    places = ranks[:, cell_of(size, cell, before.device)]
    changed = (torch.arange(steps, device=before.device) * ranks.shape[1] / steps).round()
    between = [first[:0]]
    for image, step in pairs(len(before), steps - 1, batch_size, before.device):
        gone = places[image] < changed[step + 1, None, None]
        mixed = torch.where(gone[:, None], after[image], before[image])
        between.append(probability(model, mixed, take(score, image)))
    return torch.cat([first[:, None], torch.cat(between).reshape(len(before), -1), last[:, None]], dim=1)


@torch.no_grad()
def probability(model: Engine, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, " b"]:
    """p of each image, of the model at rest."""
    check_score(score, model.model, len(images))
    with at_rest(model.model):
        return probabilities(model, images, score)


def cell_of(image_size: Size, cell: Size, device: torch.device | None = None) -> Int[Tensor, "y x"]:
    """The number, in raster order, of the cell that each pixel belongs to; the last ones may be cut off."""
    rows, columns = (torch.arange(side, device=device) // step for side, step in zip(image_size, cell, strict=True))
    return rows[:, None] * grid_of(image_size, cell)[1] + columns


def on_cells(heat: Float[Tensor, "b v w"], image_size: Size, cell: Size) -> Float[Tensor, "b y x"]:
    """A map of any resolution as the mean of each cell's pixels."""
    if not heat.isfinite().all():
        raise ValueError("the heat map holds NaN or infinite values, so its cells cannot be put in order")
    grid = grid_of(image_size, cell)
    if heat.shape[1:] == grid:
        return heat
    pixels = F.interpolate(heat[:, None], size=image_size, mode="bilinear", align_corners=False).flatten(1)
    places = cell_of(image_size, cell, heat.device).flatten()
    total = heat.new_zeros(len(heat), grid[0] * grid[1]).index_add(1, places, pixels)
    return (total / places.bincount()).unflatten(1, grid)


def ranked(cells: Float[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """The place of each cell in the order of falling heat: 0 for the hottest."""
    return cells.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def chosen_baseline(name: str) -> Callable[[Tensor], Tensor]:
    if name not in BASELINES:
        raise ValueError(f"there is no baseline {name!r}{did_you_mean(name, BASELINES)}")
    return BASELINES[name]
