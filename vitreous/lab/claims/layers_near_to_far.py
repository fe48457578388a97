"""Attention distance of each block, and what a linear probe reads from its features."""

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
from vitreous.lab.instruments.probe import edge_orientation, probe_blocks, r_squared
from vitreous.lab.instruments.real import block_features, deit_tiny, draw_scenes, load_batch, photos, traces
from vitreous.lab.prediction import AtLeast, AtMost, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend
from vitreous.models.vit import ViT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="From local to global attention, from edges to objects",
    statement="Early blocks attend to neighboring patches, late ones across the whole image. Early blocks learn "
    "edges and textures, late ones what the image means.",
    sources=(Source.DEEP_DIVE, Source.PIXELS),
    formula="",
    right="Both hold for a trained DeiT-Tiny on the whole. But the distance does not rise steadily: the first "
    "block attends farther than the two that follow, and block 4 has a head at 0.83 of uniform attention (figure). "
    "Edges fade in the middle blocks, colors remain decodable to the end, and the class of a small image is best "
    "decoded a few blocks before the end.",
    right_formula="",
    meaning="Take features from late blocks for classes, and from the first ones, or from several, for tasks that "
    "need edges and colors. Early blocks tolerate windowed attention better than late ones, but check each head "
    "first: one of block 4 attends far.",
)
NEAR = 0.75  # of the distance of uniform attention
PROBED = 112  # pixels per side, upsampled from 32
EARLY, LATE = slice(0, 4), slice(8, 12)


def right(side: float) -> float:
    """Mean distance of two random points of a square: 0.5214 sides."""
    return side * (2 + 2**0.5 + 5 * np.log(1 + 2**0.5)) / 15


def uniform_distance(cells: int) -> float:
    """Mean attention distance of uniform attention, in pixels."""
    zeros = torch.zeros(1, 1, cells * cells, 1)
    weights = Attend().weights(zeros, zeros)
    return float(measures.mean_distance(weights, (cells, cells), 0, stride=(224 / cells, 224 / cells)))


def cases(trial: Trial) -> Iterator[Case]:
    uniform = uniform_distance(14)
    yield Case("uniform attention over 224 pixels: distance", exactly(uniform), right=near(right(224), share=0.02))
    draws = torch.Generator().manual_seed(0)
    synthetic = torch.randn(300, 20, generator=draws)
    yield Case(
        "probe of a property in the features: explained variance",
        exactly(r_squared(synthetic, synthetic[:, :2] - 1, 200)),
        right=AtLeast(0.95),
    )
    unrelated = torch.randn(300, 2, generator=draws)
    yield Case("probe of an unrelated property", exactly(r_squared(synthetic, unrelated, 200)), right=AtMost(0.1))
    if trial.has("weights"):
        model = deit_tiny(trial)
        yield from distances(model, trial, uniform)
        yield from probes(model, trial)


def distances(model: ViT, trial: Trial, uniform: float) -> Iterator[Case]:
    images, _ = photos(trial, trial.choose(4, 64))
    found = [torch.stack(list(trace.mean_distance().values()), dim=1) for trace in traces(model, images)]
    shares = torch.cat(found) / uniform  # (images, blocks, heads)
    blocks = shares.mean(dim=2)
    trial.keep("distance", blocks.mean(dim=0).tolist())
    trial.keep("farthest head", shares.amax(dim=2).mean(dim=0).tolist())
    yield Case("DeiT-Tiny, correlation of depth with distance", correlation(blocks), document=AtLeast(0.5))
    ratio = "distance ÷ that of uniform attention"
    yield Case(f"first four blocks: {ratio}", mean(blocks[:, EARLY].mean(dim=1)), document=AtMost(NEAR))
    yield Case(f"last four blocks: {ratio}", mean(blocks[:, LATE].mean(dim=1)), document=AtLeast(NEAR))
    farthest = shares[:, EARLY].amax(dim=2).mean(dim=1)
    yield Case(f"first four blocks, the farthest head of each: {ratio}", mean(farthest), document=AtMost(NEAR))


def mean(values: Tensor) -> Estimate:
    return bootstrap(values.double().numpy(), np.mean)


def correlation(blocks: Tensor) -> Estimate:
    """Spearman correlation with depth, image by image."""
    from scipy.stats import spearmanr

    depth = np.arange(blocks.shape[1])
    return mean(torch.tensor([float(spearmanr(depth, row).statistic) for row in blocks.numpy()]))


def probes(model: ViT, trial: Trial) -> Iterator[Case]:
    """Probe the class and two low-level properties of an image linearly from every block."""
    count = trial.choose(180, 1500)
    if trial.cifar:
        train = open_data(trial.cifar, valid_share=0.0).train
        images, labels = load_batch(train, train.order(0, 0)[:count], size=PROBED)
    else:
        images, labels = draw_scenes(trial, "cifar", count, size=PROBED)
    blocks = block_features(model, images)
    later = {}
    for name, known in {"class": labels, "edges": edge_orientation(images), "color": images.mean(dim=(2, 3))}.items():
        rows = np.array(probe_blocks(blocks, known))
        trial.keep(name, rows.mean(axis=0).tolist())
        later[name] = rows[:, LATE].mean(axis=1) - rows[:, EARLY].mean(axis=1)
        if name == "class":
            yield Case("class decoded from the last block", mean_of(rows[:, -1].tolist()), right=AtLeast(0.2))
    yield Case("class: last four blocks less first four", mean_of(later["class"].tolist()), document=AtLeast(0.0))
    for name in ("edges", "color"):
        earlier = mean_of((-later[name]).tolist())
        yield Case(f"{name}, explained: first four blocks less last four", earlier, document=AtLeast(0.0))


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot distance and probe accuracy by block; without weights the default rows."""
    from vitreous.draw.style import LINES, side_by_side, style_axis
    from vitreous.lab.figures import place_legend, plot_rows

    if "distance" not in outcome.series:
        return plot_rows(outcome.cases)
    figure, panels = side_by_side(2, width=3.6, height=3.2)
    for axis, names, title in zip(
        panels,
        (("distance", "farthest head"), ("class", "edges", "color")),
        ("distance ÷ that of uniform attention", "decoded by a linear probe"),
        strict=True,
    ):
        for name, (color, _) in zip(names, LINES, strict=False):
            values = outcome.series[name]
            axis.plot(range(1, len(values) + 1), values, "o-", color=color, markersize=3.5, linewidth=1.4, label=name)
        axis.set_xlabel("block")
        axis.set_xticks(range(1, 13, 2))
        axis.set_ylabel(title)
        axis.set_ylim(0, 1.05)
        style_axis(axis)
        place_legend(axis)
    return figure
