"""From near to far and from edges to objects: how far each block looks, and what can be read off it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitreous.data.sources import open_data
from vitreous.explain import measures
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import Estimate, bootstrap, exactly, mean_of
from vitreous.lab.instruments.probe import by_block, edge_ways, explained
from vitreous.lab.instruments.real import block_features, deit_tiny, drawn, photos, prepared, traces
from vitreous.lab.prediction import AtLeast, AtMost, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend
from vitreous.models.vit import ViT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import Outcome

CLAIM = Claim(
    title="From near to far, from edges to objects",
    statement="Early blocks attend to neighboring patches, late ones across the whole image. Early blocks learn "
    "edges and textures, late ones what the image means.",
    sources=(Source.DEEP_DIVE, Source.PIXELS),
    formula="",
    right="Both are true of a trained DeiT-Tiny on the whole. But it is no steady rise: the first block looks farther "
    "than the two that follow, and block 4 has a head at 0.83 of an even look (figure). Edges fade in the middle "
    "blocks, colors stay readable to the end, and the class of a small image is read best a few blocks before the "
    "end.",
    right_formula="",
    meaning="Take features from late blocks for classes, and from the first ones, or from several, for tasks that need "
    "edges and colors. Early blocks bear windows better than late ones, but look at each head first: one of block 4 "
    "looks far.",
)
NEAR = 0.75  # of the distance of an even look at everything
PROBED = 112  # pixels a side: the images that are probed have 32
EARLY, LATE = slice(0, 4), slice(8, 12)


def right(side: float) -> float:
    """How far apart two random places of a square lie on average: 0.5214 sides."""
    return side * (2 + 2**0.5 + 5 * np.log(1 + 2**0.5)) / 15


def even_look(cells: int) -> float:
    """How far patches look in pixels if they look at everything."""
    nothing = torch.zeros(1, 1, cells * cells, 1)
    whole = Attend().weights(nothing, nothing)
    return float(measures.mean_distance(whole, (cells, cells), 0, stride=(224 / cells, 224 / cells)))


def cases(trial: Trial) -> Iterator[Case]:
    everywhere = even_look(14)
    yield Case("an even look at all of 224 pixels: distance", exactly(everywhere), right=near(right(224), share=0.02))
    draws = torch.Generator().manual_seed(0)
    made_up = torch.randn(300, 20, generator=draws)
    yield Case(
        "probe of a property that is there: explained",
        exactly(explained(made_up, made_up[:, :2] - 1, 200)),
        right=AtLeast(0.95),
    )
    unrelated = torch.randn(300, 2, generator=draws)
    yield Case("probe of one that is not", exactly(explained(made_up, unrelated, 200)), right=AtMost(0.1))
    if trial.has("weights"):
        model = deit_tiny(trial)
        yield from distances(model, trial, everywhere)
        yield from probes(model, trial)


def distances(model: ViT, trial: Trial, everywhere: float) -> Iterator[Case]:
    images, _ = photos(trial, trial.choose(4, 64))
    found = [torch.stack(list(trace.mean_distance().values()), dim=1) for trace in traces(model, images)]
    shares = torch.cat(found) / everywhere  # (images, blocks, heads)
    blocks = shares.mean(dim=2)
    trial.keep("distance", blocks.mean(dim=0).tolist())
    trial.keep("farthest head", shares.amax(dim=2).mean(dim=0).tolist())
    yield Case("DeiT-Tiny, correlation of depth with distance", correlation(blocks), document=AtLeast(0.5))
    told = "distance ÷ that of an even look"
    yield Case(f"first four blocks: {told}", mean(blocks[:, EARLY].mean(dim=1)), document=AtMost(NEAR))
    yield Case(f"last four blocks: {told}", mean(blocks[:, LATE].mean(dim=1)), document=AtLeast(NEAR))
    farthest = shares[:, EARLY].amax(dim=2).mean(dim=1)
    yield Case(f"first four blocks, the farthest head of each: {told}", mean(farthest), document=AtMost(NEAR))


def mean(values: Tensor) -> Estimate:
    return bootstrap(values.double().numpy(), np.mean)


def correlation(blocks: Tensor) -> Estimate:
    """Of ranks, image by image."""
    from scipy.stats import spearmanr

    depth = np.arange(blocks.shape[1])
    return mean(torch.tensor([float(spearmanr(depth, row).statistic) for row in blocks.numpy()]))


def probes(model: ViT, trial: Trial) -> Iterator[Case]:
    """The class and two plain properties of an image, read off every block by a linear probe."""
    count = trial.choose(180, 1500)
    if trial.cifar:
        train = open_data(trial.cifar, valid_share=0.0).train
        images, labels = prepared(train, train.order(0, 0)[:count], size=PROBED)
    else:
        images, labels = drawn(trial, "cifar", count, size=PROBED)
    blocks = block_features(model, images)
    later = {}
    for name, known in {"class": labels, "edges": edge_ways(images), "color": images.mean(dim=(2, 3))}.items():
        rows = np.array(by_block(blocks, known))
        trial.keep(name, rows.mean(axis=0).tolist())
        later[name] = rows[:, LATE].mean(axis=1) - rows[:, EARLY].mean(axis=1)
        if name == "class":
            yield Case("class read off the last block", mean_of(rows[:, -1].tolist()), right=AtLeast(0.2))
    yield Case("class: last four blocks less first four", mean_of(later["class"].tolist()), document=AtLeast(0.0))
    for name in ("edges", "color"):
        earlier = mean_of((-later[name]).tolist())
        yield Case(f"{name}, explained: first four blocks less last four", earlier, document=AtLeast(0.0))


def draw(outcome: Outcome) -> Figure:
    """Distance by block, and what is read off each block; without weights the usual rows."""
    from vitreous.draw.style import LINES, plain, side_by_side
    from vitreous.lab.figures import in_rows, legend

    if "distance" not in outcome.series:
        return in_rows(outcome.cases)
    figure, panels = side_by_side(2, width=3.6, height=3.2)
    for axis, names, title in zip(
        panels,
        (("distance", "farthest head"), ("class", "edges", "color")),
        ("distance ÷ that of an even look", "read by a linear probe"),
        strict=True,
    ):
        for name, (color, _) in zip(names, LINES, strict=False):
            values = outcome.series[name]
            axis.plot(range(1, len(values) + 1), values, "o-", color=color, markersize=3.5, linewidth=1.4, label=name)
        axis.set_xlabel("block")
        axis.set_xticks(range(1, 13, 2))
        axis.set_ylabel(title)
        axis.set_ylim(0, 1.05)
        plain(axis)
        legend(axis)
    return figure
