"""In Pre-LN the residual stream grows with depth, and without a final norm so does the classifier's input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.data.base import class_vectors
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.instruments.dependence import capture_inputs
from vitreous.lab.instruments.real import deit_tiny, photos
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, AtMost, Near, near
from vitreous.lab.trained import centered_shapes
from vitreous.lab.trial import Trial
from vitreous.layers.block import PostNormBlock
from vitreous.models.base import Backbone
from vitreous.models.vit import ViTConfig

CLAIM = Claim(
    title="The norm after the last block",
    statement="A benefit of Pre-LN over Post-LN: the final LayerNorm can be skipped, though ViT keeps it.",
    sources=(Source.DEEP_DIVE,),
    formula=r"y = \mathrm{head}(x_L), \quad x_{l+1} = x_l + F(\mathrm{LN}(x_l))",
    right="If anything it is the other way round: Post-LN ends with a norm, Pre-LN only ever adds to its "
    "residual stream. In an untrained model the stream grows as the root of the sum of the branches' squares (or "
    "faster), somewhat faster than the root of the depth. Whether training suffers without the final norm, a few "
    "short runs do not settle.",
    right_formula=r"\|x_L\|^2 \approx \|x_0\|^2 + \sum_l \|F_l\|^2",
    meaning="Skipping it saves 2d parameters and couples the scale of the logits, and so the best learning rate, "
    "to the depth. Keep it, and never drop it from trained weights: DeiT-Tiny's scales the class token by three.",
    axes=Axes("blocks", "root mean square before the classifier", log="x"),
)
SMALL = ViTConfig(image_size=(16, 16), patch_size=(4, 4), num_classes=10, dim=32, num_heads=2)
DIM = 64
PEAK = 1e-2  # peak learning rate


def document() -> float:
    """Accuracy that may be lost without the norm if it can be skipped: none, within two points."""
    return 0.02


def right(depth: int, after_one: float) -> float:
    """Lower bound: each block adds to the patches' variance of 1 what the first block adds."""
    return math.sqrt(1 + depth * (after_one**2 - 1))


def stream_rms(depth: int, seed: int, *, post: bool = False) -> float:
    """RMS of the residual stream after the last block of an untrained ViT."""
    config = ViTConfig(image_size=(32, 32), patch_size=(4, 4), dim=DIM, num_heads=2, depth=depth)
    with seeded(seed):
        model, images = config.override(class_token=False, pool="mean").build(), torch.randn(2, 3, 32, 32)
        if post:
            model.blocks = nn.ModuleList(post_norm(block) for block in model.blocks)
    return final_rms(model, images)


def post_norm(block: nn.Module) -> PostNormBlock:
    """Convert a block to Post-LN with the same branches."""
    mixer, mlp = block.get_submodule("mixer"), block.get_submodule("mlp")
    return PostNormBlock(DIM, mixer, mlp)


@torch.no_grad()
def final_rms(model: Backbone, images: Tensor) -> float:
    """RMS of the tokens that the classifier reads, after the last block and before the final norm."""
    return rms(final_tokens(model, images))


@torch.no_grad()
def growth_by_norm(model: Backbone, images: Tensor) -> float:
    """Factor by which the final norm scales the tokens that the classifier reads."""
    before_norm = final_tokens(model, images)
    return rms(model.get_submodule("norm")(before_norm)) / rms(before_norm)


def final_tokens(model: Backbone, images: Tensor) -> Tensor:
    (before_norm,), _ = capture_inputs(model.get_submodule("norm"), lambda: model(images))
    return before_norm[:, model.read_tokens(model.features(images).num_prefix)]


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def shapes() -> tuple[Tensor, Tensor]:
    """Small synthetic shapes centered on zero, and their class vectors."""
    data = centered_shapes(2_000, 16, seed=0)
    indices = np.arange(len(data))
    return torch.from_numpy(data.pixels(indices)) / 127.5 - 1, torch.from_numpy(class_vectors(data, indices))


def accuracy(seed: int, depth: int, steps: int, *, normed: bool) -> float:
    """Accuracy on the last 300 shapes after training on the others."""
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
    after_one = trial.repeat(partial(stream_rms, 1)).value
    depths = trial.choose(quick=(2, 8, 32), full=(2, 4, 8, 16, 32, 64))
    for depth in depths:
        yield Case(
            f"Pre-LN without a final norm, {depth} blocks",
            trial.repeat(partial(stream_rms, depth)),
            right=AtLeast(0.9 * right(depth, after_one)),
            at=depth,
            group="Pre-LN without a final norm",
        )
    for depth in depths:
        final = exactly(stream_rms(depth, 0, post=True))
        yield Case(f"Post-LN, {depth} blocks", final, right=Near(1.0, 0.01), at=depth, group="Post-LN")
    if trial.has("weights"):
        model, (images, _) = deit_tiny(trial), photos(trial, trial.choose(4, 32))
        label = "DeiT-Tiny's class token: RMS after the final norm ÷ before it"
        yield Case(label, exactly(growth_by_norm(model, images)), right=near(3.0, share=0.25))
    depth, steps, seeds = trial.choose(quick=(2, 50, range(3)), full=(8, 100, range(4)))
    runs = [[accuracy(seed, depth, steps, normed=normed) for normed in (True, False)] for seed in seeds]
    label = (
        f"accuracy lost on synthetic shapes by {depth} blocks trained without it ({steps} steps, {len(seeds)} seeds)"
    )
    yield Case(label, mean_of([with_it - without for with_it, without in runs]), document=AtMost(document()))
    yield Case("accuracy of that model with it", mean_of([with_it for with_it, _ in runs]), right=AtLeast(0.15))
