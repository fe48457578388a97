"""Faithfulness of attribution maps: deletion and insertion curves, and the pointing game.

    deletion       p while cells are hidden, the most important first: the faster it falls, the better
    insertion      p while cells are revealed on a hidden image, the most important first: it should rise
    faithfulness   area under insertion − area under deletion
    pointing       whether the center of the hottest cell lies on the object

Curves as in "RISE", Petsiuk et al. 2018 (arXiv 1806.07421); pointing as in "Top-down Neural Attention by Excitation
Backprop", Zhang et al. 2016 (arXiv 1608.00507). All methods hide the same cells rather than pixels, so that a fine map
has no advantage over a coarse one. A half-hidden image is out of distribution, which shifts every curve: absolute
numbers mean little, so each method is compared with random maps on the same images. p is the probability of the score
(``score.py``): for a class, its softmax probability.
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

from vitreous.explain.attribution import METHODS, Method, batched_pairs, cell_size, frozen_eval, methods_for
from vitreous.explain.score import Score, check_score, probabilities, take
from vitreous.layers.patch import grid_of
from vitreous.models.engine import Engine
from vitreous.options import did_you_mean
from vitreous.spec import Size

THUMBNAIL = 4  # cells per side that a blurred image retains
MIN_IMAGES = 10  # for a bootstrap interval
RESAMPLES = 2000

#: Measures, and whether higher is better.
MEASURES = {"deletion": False, "insertion": True, "faithfulness": True, "pointing": True}
Verdict = Literal["better than random", "no better than random", "worse than random", "too few images to say"]


def gray(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Replace images by the mean color of the training images, which is 0 after normalization."""
    return torch.zeros_like(images)


def blur(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Blur images to a bilinearly enlarged 4 × 4 thumbnail: hidden cells keep their coarse color."""
    thumbnail = F.adaptive_avg_pool2d(images, THUMBNAIL)
    return F.interpolate(thumbnail, size=images.shape[2:], mode="bilinear", align_corners=False)


#: Replacements for hidden cells.
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
    """Deletion curve pₖ = p(the k/steps most important cells hidden), k = 0 … steps.

    Args:
        model: The model or an accelerated engine.
        images: Normalized images.
        score: The explained score, whose probability is plotted.
        heat: Attribution maps of any resolution; ties are hidden in raster order.
        steps: Number of equal steps.
        baseline: Replacement of hidden cells: "blur" or "gray".
        cell: Size in pixels of the cells that are hidden. Default: :func:`cell_size`.
        batch_size: Number of partly hidden images per forward pass.
    """
    hidden = get_baseline(baseline)(images)
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
    """Insertion curve pₖ = p(only the k/steps most important cells visible), k = 0 … steps; see :func:`deletion`."""
    hidden = get_baseline(baseline)(images)
    return curve(model, hidden, images, score, heat, steps=steps, cell=cell, batch_size=batch_size)


def auc(curve: Float[Tensor, "b points"]) -> Float[Tensor, " b"]:
    """Area under a curve, ∫₀¹ p(s) ds by the trapezoidal rule, with s the fraction of changed cells."""
    return (curve[:, :-1] + curve[:, 1:]).mean(dim=1) / 2


def pointing(
    heat: Float[Tensor, "b v w"], masks: Bool[Tensor, "b y x"], *, cell: Size | None = None
) -> Bool[Tensor, " b"]:
    """Pointing game: whether the center of the hottest cell (of equal ones the first) lies on the object.

    ``cell`` is the cell size in pixels, needed if the last cells extend beyond the image. Default: image size / grid.
    """
    (height, width), (rows, columns) = masks.shape[1:], heat.shape[1:]
    down, across = cell or (height / rows, width / columns)
    hottest = heat.flatten(1).argmax(dim=1)
    y = ((hottest // columns + 0.5) * down).long().clamp(max=height - 1)
    x = ((hottest % columns + 0.5) * across).long().clamp(max=width - 1)
    return masks[torch.arange(len(masks), device=masks.device), y, x]


@dataclass(frozen=True)
class MeanInterval:
    """A mean over images with its 95 % bootstrap confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class FaithfulnessTable:
    """Measurements of several methods: method → measure → one value per image."""

    values: Mapping[str, Mapping[str, NDArray[np.float64]]]
    seed: int = 0

    @property
    def num_images(self) -> int:
        return len(self.values["random"]["faithfulness"])

    def mean(self, method: str, measure: str = "faithfulness") -> MeanInterval:
        return bootstrap(self.values[method][measure], self.seed)

    def paired_difference(self, method: str, other: str = "random", *, measure: str = "faithfulness") -> MeanInterval:
        """Mean difference of two methods, paired by image."""
        return bootstrap(self.values[method][measure] - self.values[other][measure], self.seed)

    def verdict(self, method: str, measure: str = "faithfulness") -> Verdict:
        """Compare with random maps: significant if the interval of the paired difference excludes 0."""
        if self.num_images < MIN_IMAGES:
            return "too few images to say"
        difference = self.paired_difference(method, measure=measure)
        if difference.low <= 0 <= difference.high:
            return "no better than random"
        return "better than random" if (difference.low > 0) == MEASURES[measure] else "worse than random"

    def to_json(self) -> dict[str, Any]:
        return {
            method: {
                measure: asdict(self.mean(method, measure))
                | {"against_random": asdict(self.paired_difference(method, measure=measure))}
                | {"verdict": self.verdict(method, measure)}
                for measure in measured
            }
            for method, measured in self.values.items()
        }


def bootstrap(values: NDArray[np.float64], seed: int = 0) -> MeanInterval:
    """Mean, and the 2.5 % and 97.5 % quantiles of the means of 2,000 bootstrap samples."""
    drawn = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    return MeanInterval(float(values.mean()), float(low), float(high))


def summarize(table: FaithfulnessTable) -> str:
    """Report in a few sentences which methods are the most faithful on this model."""
    number = table.num_images
    if number < MIN_IMAGES:
        few = "One image is" if number == 1 else f"{number} images are"
        return f"{few} too few to compare methods; use at least {MIN_IMAGES}."
    names = sorted((name for name in table.values if name != "random"), key=lambda n: -table.mean(n).mean)
    verdicts = {name: table.verdict(name) for name in names}
    better = [name for name in names if verdicts[name] == "better than random"]
    sentences = [f"On these {number} images {best_methods(table, better)}."]
    for verdict in ("no better than random", "worse than random"):
        if found := [name for name in names if verdicts[name] == verdict]:
            sentences.append(f"{verdict.capitalize()}: {', '.join(found)}.")
    return " ".join(sentences)


def best_methods(table: FaithfulnessTable, better: list[str]) -> str:
    """The best of the methods that beat random maps, and those not significantly worse."""
    if not better:
        return "no method is more faithful than random maps"
    best, *others = better
    equal = [name for name in others if table.paired_difference(best, name).low <= 0]
    verb = f"and, not significantly worse, {' and '.join(equal)} are" if equal else "is"
    return f"{best} {verb} the most faithful: {table.mean(best).mean:.2f}, random maps {table.mean('random').mean:.2f}"


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
) -> FaithfulnessTable:
    """Measure the faithfulness of attribution methods, and of random maps, on the same images.

    Args:
        model: The model or an accelerated engine.
        images: Normalized images.
        score: The explained score.
        methods: Methods by name. Default: all that apply to the model. "random" is always added.
        masks: Masks of the objects; given, the pointing game is measured too.
        seed: Seed of the random maps and the bootstrap; nothing else depends on it.
        steps: Number of steps of the curves.
        baseline: Replacement of hidden cells: "blur" or "gray".
        batch_size: Number of images per call of a method.

    Returns:
        A table of one value per method, measure and image.
    """
    compared = dict(methods_for(model.model) if methods is None else methods)
    compared.setdefault("random", METHODS["random"])
    size = (images.shape[2], images.shape[3])
    parts: dict[str, list[dict[str, Tensor]]] = {name: [] for name in compared}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for chosen in torch.arange(len(images)).split(batch_size):
            batch, batch_score = images[chosen], take(score, chosen)
            heats = {
                n: cell_means(method(model.model, batch, batch_score), size, cell_size(model.model, size))
                for n, method in compared.items()
            }
            for name, measured in areas(model, batch, batch_score, heats, steps=steps, baseline=baseline).items():
                if masks is not None:
                    measured["pointing"] = pointing(heats[name], masks[chosen])
                parts[name].append(measured)
    return FaithfulnessTable({name: concatenated(part) for name, part in parts.items()}, seed)


def areas(
    model: Engine, images: Tensor, score: Score, heats: Mapping[str, Tensor], *, steps: int, baseline: str
) -> dict[str, dict[str, Float[Tensor, " b"]]]:
    """Areas under both curves of every map. The end points are the same for all curves and computed once."""
    hidden = get_baseline(baseline)(images)
    visible, blank = (probability(model, part, score) for part in (images, hidden))
    found = {}
    for name, heat in heats.items():
        falling = auc(curve(model, images, hidden, score, heat, steps=steps, ends=(visible, blank)))
        rising = auc(curve(model, hidden, images, score, heat, steps=steps, ends=(blank, visible)))
        found[name] = {"deletion": falling, "insertion": rising, "faithfulness": rising - falling}
    return found


def concatenated(parts: list[dict[str, Tensor]]) -> dict[str, NDArray[np.float64]]:
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
    """Compute p while cells change from ``before`` to ``after`` in ``steps`` equal steps, the hottest first.

    ``ends`` are the first and the last column, if known already.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    first, last = ends or (probability(model, part, score) for part in (before, after))
    size = (before.shape[2], before.shape[3])
    cell = cell or cell_size(model.model, size)
    ranks = rank_cells(cell_means(heat, size, cell).flatten(1))
    pixel_ranks = ranks[:, cell_of(size, cell, before.device)]
    changed = (torch.arange(steps, device=before.device) * ranks.shape[1] / steps).round()
    between = [first[:0]]
    for image, step in batched_pairs(len(before), steps - 1, batch_size, before.device):
        is_changed = pixel_ranks[image] < changed[step + 1, None, None]
        mixed = torch.where(is_changed[:, None], after[image], before[image])
        between.append(probability(model, mixed, take(score, image)))
    return torch.cat([first[:, None], torch.cat(between).reshape(len(before), -1), last[:, None]], dim=1)


@torch.no_grad()
def probability(model: Engine, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, " b"]:
    """p of each image, with the model in evaluation mode."""
    check_score(score, model.model, len(images))
    with frozen_eval(model.model):
        return probabilities(model, images, score)


def cell_of(image_size: Size, cell: Size, device: torch.device | None = None) -> Int[Tensor, "y x"]:
    """Raster index of the cell that contains each pixel; the last cells may be clipped."""
    rows, columns = (torch.arange(side, device=device) // step for side, step in zip(image_size, cell, strict=True))
    return rows[:, None] * grid_of(image_size, cell)[1] + columns


def cell_means(heat: Float[Tensor, "b v w"], image_size: Size, cell: Size) -> Float[Tensor, "b y x"]:
    """Resample a heat map to cells: interpolate it to pixels, and average over each cell."""
    if not heat.isfinite().all():
        raise ValueError("the heat map contains NaN or infinite values, so its cells cannot be ranked")
    grid = grid_of(image_size, cell)
    if heat.shape[1:] == grid:
        return heat
    pixels = F.interpolate(heat[:, None], size=image_size, mode="bilinear", align_corners=False).flatten(1)
    cells = cell_of(image_size, cell, heat.device).flatten()
    total = heat.new_zeros(len(heat), grid[0] * grid[1]).index_add(1, cells, pixels)
    return (total / cells.bincount()).unflatten(1, grid)


def rank_cells(cells: Float[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Rank of each cell by falling heat: 0 for the hottest."""
    return cells.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def get_baseline(name: str) -> Callable[[Tensor], Tensor]:
    if name not in BASELINES:
        raise ValueError(f"unknown baseline {name!r}{did_you_mean(name, BASELINES)}")
    return BASELINES[name]
