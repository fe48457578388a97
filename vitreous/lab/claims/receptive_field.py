"""Effective receptive field by input gradient: global for attention, growing layer by layer for convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import Estimate, mean_of
from vitreous.lab.figures import plot_curves
from vitreous.lab.instruments.run_evaluation import convnet_receptive_field, initial_model, validation_batch
from vitreous.lab.prediction import AtLeast, AtMost, Prediction, near
from vitreous.lab.sweep import run_seeds
from vitreous.lab.trained import Trained, trained_run
from vitreous.lab.trial import Trial
from vitreous.models.base import Backbone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="The effective receptive field",
    statement="In a ViT the receptive field is global from the first layer on. In a CNN it grows with depth, and the "
    "effective one is much smaller than it could be and concentrated at its center.",
    sources=(Source.PRINCIPLES, Source.DEEP_DIVE, Source.FOUNDATIONS, Source.PIXELS, Source.MODERN),
    formula="",
    right="Every pixel can influence a ViT's unit in layer 1, and a CNN's field is as narrow as its kernels "
    "imply. How much influence distant pixels have is another matter: through the residual stream a unit's own patch "
    "dominates.",
    right_formula="",
    meaning="Do not choose attention for its reach in layer 1 alone: measure where the gradients of your own model "
    "come from. Where distant evidence decides, give a CNN enough stages, dilation or an attention layer near the end.",
)
FAR = 0.25  # of the image's side, from the center of the unit's cell


def document(kind: str) -> Prediction:
    """Bound on the distant share of the energy: most for a global field (0.8 if uniform), little for a local one."""
    return AtLeast(0.5) if kind == "ViT" else AtMost(0.25)


def document_inner_half() -> float:
    """Bound on the share outside the inner half of a concentrated field (0.8 if uniform)."""
    return 0.25


def right(field: int, side: int) -> float:
    """Share of a square image covered by a field of ``field`` pixels across."""
    return min(1.0, field / side) ** 2


def energy(model: Backbone, block: nn.Module, images: Tensor, seed: int) -> Tensor:
    """Squared input gradient of a random projection of the block's central unit, per pixel, (y, x)."""
    kept: list[Tensor] = []
    handle = block.register_forward_hook(lambda module, given, out: kept.append(out))
    inputs = images.clone().requires_grad_()
    model(inputs)
    handle.remove()
    unit = central(kept[0], model)
    direction = torch.randn(unit.shape, generator=torch.Generator().manual_seed(seed))
    (gradient,) = torch.autograd.grad((unit * direction).sum(), inputs)
    return gradient.square().sum(dim=1).mean(dim=0)


def central(out: Tensor, model: Backbone) -> Tensor:
    """Output at the cell that begins in the middle of the image, (b, d)."""
    if out.ndim == 4:
        return out[:, :, out.shape[2] // 2, out.shape[3] // 2]
    side = model.config.image_size[0] // model.strides[0][0]
    return out[:, side * (side // 2) + side // 2 - side * side]


def outside(found: Tensor, cell: int, radius: float) -> float:
    """Share of the energy beyond ``radius`` pixels from the center of the unit's cell."""
    offset = torch.arange(len(found)) + 0.5 - (len(found) + cell) / 2
    return float(found[torch.hypot(offset[:, None], offset) > radius].sum() / found.sum())


def cell_of(kind: str, model: Backbone, layer: int) -> int:
    return 2 ** (layer + 1) if kind == "CNN" else model.strides[0][0]


def energies(run: Trained, model: Backbone, number: int) -> list[Tensor]:
    images = validation_batch(run, number).images
    return [energy(model, block, images, run.recipe.train.seed) for block in model.blocks]


def cases(trial: Trial) -> Iterator[Case]:
    number = trial.choose(16, 64)
    for name, kind in (("base", "ViT"), ("cnn", "CNN")):
        runs = [trained_run(trial, name, seed) for seed in run_seeds(trial, name)]
        trained_energies = [energies(run, run.model, number) for run in runs]
        initial_energies = [energies(run, initial_model(run), number) for run in runs]
        yield reach(kind, trained_energies)
        if kind == "CNN":
            yield concentration(trained_energies)
        shares = far_shares(kind, runs[0].model, trained_energies)
        trial.keep(f"{kind}, trained", [each.value for each in shares])
        trial.keep(
            f"{kind}, initial weights", [each.value for each in far_shares(kind, runs[0].model, initial_energies)]
        )
        for layer, share in enumerate(shares):
            if kind == "ViT" or layer == 0:
                expected = document(kind)
                yield Case(f"{kind}, layer {layer + 1}: distant share of the gradient energy", share, document=expected)


def reach(kind: str, found: list[list[Tensor]]) -> Case:
    side = len(found[0][0])
    return Case(
        f"{kind}, layer 1: share of pixels with a nonzero gradient",
        mean_of([float((first > 0).float().mean()) for first, *_ in found]),
        document=AtLeast(1.0) if kind == "ViT" else None,
        right=near(right(side if kind == "ViT" else convnet_receptive_field(1), side), share=0.02),
    )


def concentration(found: list[list[Tensor]]) -> Case:
    """Measure concentration in the deepest layer whose field still fits in the image."""
    side = len(found[0][0])
    layer = max(index for index in range(len(found[0])) if convnet_receptive_field(index + 1) <= side)
    inner = convnet_receptive_field(layer + 1) / 4
    return Case(
        f"CNN, layer {layer + 1}: share of the gradient energy outside the inner half of its field",
        mean_of([outside(maps[layer], 2 ** (layer + 1), inner) for maps in found]),
        document=AtMost(document_inner_half()),
    )


def far_shares(kind: str, model: Backbone, found: list[list[Tensor]]) -> list[Estimate]:
    """Share of the energy from beyond a quarter of the image, layer by layer."""
    return [
        mean_of([outside(each, cell_of(kind, model, layer), FAR * len(each)) for each in maps])
        for layer, maps in enumerate(zip(*found, strict=True))
    ]


def draw(outcome: ClaimOutcome) -> Figure:
    lines = {
        name: ([(layer + 1) / len(values) for layer in range(len(values))], values)
        for name, values in outcome.series.items()
    }
    return plot_curves(lines, Axes("depth passed, as a share of the model", "distant share of the gradient energy"))
