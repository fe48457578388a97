"""Pre-LN leaves its stream as large as it happens to be: what a classifier sees then depends on the depth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.data.base import class_rows
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.instruments.chance import seeded
from vitreous.lab.instruments.dependence import given_to
from vitreous.lab.instruments.real import deit_tiny, photos
from vitreous.lab.prediction import AtLeast, AtMost, Near, near
from vitreous.lab.trained import centred_shapes
from vitreous.lab.trial import Trial
from vitreous.layers.block import PostNormBlock
from vitreous.models.base import Backbone
from vitreous.models.vit import ViTConfig

CLAIM = Claim(
    title="The norm after the last block",
    statement="A benefit of Pre-LN over Post-LN: the final LayerNorm can be skipped, though ViT keeps it.",
    sources=(Source.DEEP_DIVE,),
    formula=r"y = \mathrm{head}(x_L), \quad x_{l+1} = x_l + F(\mathrm{LN}(x_l))",
    right="If anything it is the other way round: Post-LN ends with a norm, Pre-LN only ever adds to its stream. In a "
    "fresh model that grows as the root of the sum of the branches' squares (or more), somewhat faster than the root "
    "of the depth. Whether training suffers without the final norm, a few short runs do not settle.",
    right_formula=r"\|x_L\|^2 \approx \|x_0\|^2 + \sum_l \|F_l\|^2",
    meaning="Skipping it saves 2d parameters and ties the scale of the logits, and so the best learning rate, to the "
    "depth. Keep it, and never drop it from trained weights: DeiT-Tiny's makes the class token three times as large.",
    axes=Axes("blocks", "root mean square before the classifier", log="x"),
)
SMALL = ViTConfig(image_size=(16, 16), patch_size=(4, 4), num_classes=10, dim=32, num_heads=2)
DIM = 64
PEAK = 1e-2  # learning rate


def document() -> float:
    """The accuracy that leaving the norm out may cost, if it can be skipped: none, give or take two points."""
    return 0.02


def right(depth: int, after_one: float) -> float:
    """At least: to the patches' 1 every block adds the variance that the first adds, and more where they agree."""
    return math.sqrt(1 + depth * (after_one**2 - 1))


def stream_size(depth: int, seed: int, *, post: bool = False) -> float:
    """Behind the last block of a fresh ViT."""
    config = ViTConfig(image_size=(32, 32), patch_size=(4, 4), dim=DIM, num_heads=2, depth=depth)
    with seeded(seed):
        model, images = config.override(class_token=False, pool="mean").build(), torch.randn(2, 3, 32, 32)
        if post:
            model.blocks = nn.ModuleList(post_norm(block) for block in model.blocks)
    return size_behind(model, images)


def post_norm(block: nn.Module) -> PostNormBlock:
    """With the same branches."""
    mixer, mlp = block.get_submodule("mixer"), block.get_submodule("mlp")
    return PostNormBlock(DIM, mixer, mlp)


@torch.no_grad()
def size_behind(model: Backbone, images: Tensor) -> float:
    """Of the tokens that the classifier reads, behind the last block and before the final norm."""
    return size(end_of(model, images))


@torch.no_grad()
def growth_by_norm(model: Backbone, images: Tensor) -> float:
    """How many times larger the final norm makes the tokens that the classifier reads."""
    end = end_of(model, images)
    return size(model.get_submodule("norm")(end)) / size(end)


def end_of(model: Backbone, images: Tensor) -> Tensor:
    (end,), _ = given_to(model.get_submodule("norm"), lambda: model(images))
    return end[:, model.read_tokens(model.features(images).num_prefix)]


def size(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def shapes() -> tuple[Tensor, Tensor]:
    """Small drawn shapes around zero, and the classes' vectors."""
    data = centred_shapes(2_000, 16, seed=0)
    everything = np.arange(len(data))
    return torch.from_numpy(data.pixels(everything)) / 127.5 - 1, torch.from_numpy(class_rows(data, everything))


def accuracy(seed: int, depth: int, steps: int, *, normed: bool) -> float:
    """On the last 300 shapes, after some steps of training on the others."""
    images, targets = shapes()
    with seeded(seed):
        model = SMALL.override(depth=depth).build()
        if not normed:
            model.add_module("norm", nn.Identity())
        optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = PEAK * min(1.0, 10 * (step + 1) / steps) * (1 - step / steps)
            chosen = torch.randint(len(images) - 300, (64,))
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), targets[chosen]).backward()
            optimizer.step()
        with torch.no_grad():
            answers = model.eval()(images[-300:])
    return float((answers.argmax(1) == targets[-300:].argmax(1)).double().mean())


def cases(trial: Trial) -> Iterator[Case]:
    after_one = trial.repeat(partial(stream_size, 1)).value
    depths = trial.choose(quick=(2, 8, 32), full=(2, 4, 8, 16, 32, 64))
    for depth in depths:
        yield Case(
            f"Pre-LN without a final norm, {depth} blocks",
            trial.repeat(partial(stream_size, depth)),
            right=AtLeast(0.9 * right(depth, after_one)),
            at=depth,
            group="Pre-LN without a final norm",
        )
    for depth in depths:
        ends = exactly(stream_size(depth, 0, post=True))
        yield Case(f"Post-LN, {depth} blocks", ends, right=Near(1.0, 0.01), at=depth, group="Post-LN")
    if trial.has("weights"):
        model, (images, _) = deit_tiny(trial), photos(trial, trial.choose(4, 32))
        label = "DeiT-Tiny's class token: size after the final norm ÷ before it"
        yield Case(label, exactly(growth_by_norm(model, images)), right=near(3.0, share=0.25))
    depth, steps, seeds = trial.choose(quick=(2, 50, range(3)), full=(8, 100, range(4)))
    runs = [[accuracy(seed, depth, steps, normed=normed) for normed in (True, False)] for seed in seeds]
    label = f"accuracy lost on drawn shapes by {depth} blocks trained without it ({steps} steps, {len(seeds)} seeds)"
    yield Case(label, mean_of([with_it - without for with_it, without in runs]), document=AtMost(document()))
    yield Case("accuracy of that model with it", mean_of([with_it for with_it, _ in runs]), right=AtLeast(0.15))
