"""How far a unit sees, by its gradient: attention can reach everywhere at once, a convolution grows step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import Estimate, mean_of
from vitreous.lab.figures import curves
from vitreous.lab.instruments.examined import convolutional_field, initial, unseen
from vitreous.lab.prediction import AtLeast, AtMost, Prediction, near
from vitreous.lab.sweep import seeds
from vitreous.lab.trained import Trained, trained
from vitreous.lab.trial import Trial
from vitreous.models.base import Backbone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import Outcome

CLAIM = Claim(
    title="The effective receptive field",
    statement="In a ViT the receptive field is global from the first layer on. In a CNN it grows with depth, and the "
    "effective one is much smaller than it could be and concentrated at its center.",
    sources=(Source.PRINCIPLES, Source.DEEP_DIVE, Source.FOUNDATIONS, Source.PIXELS, Source.MODERN),
    formula="",
    right="Every pixel can reach a ViT's unit in layer 1, and a CNN's field is as narrow as counted. How much does "
    "arrive from afar is another matter: the residual stream keeps a unit's own patch in the foreground.",
    right_formula="",
    meaning="Do not choose attention for its reach in layer 1 alone: measure where the gradients of your own model "
    "come from. Where distant evidence decides, give a CNN enough stages, dilation or an attention layer near the end.",
)
FAR = 0.25  # of the image's side, from the middle of the unit's own cell


def document(kind: str) -> Prediction:
    """A global field takes most of its energy from afar (an even spread would give 0.8), a local one little."""
    return AtLeast(0.5) if kind == "ViT" else AtMost(0.25)


def document_inner_half() -> float:
    """Concentrated: less than this lies outside the inner half of the field (an even spread would give 0.8)."""
    return 0.25


def right(field: int, side: int) -> float:
    """The share of a square image inside a field of so many pixels across."""
    return min(1.0, field / side) ** 2


def energy(model: Backbone, block: nn.Module, images: Tensor, seed: int) -> Tensor:
    """(y, x): squared gradient of the block's central unit, a random mix of its channels, by pixel."""
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
    """(b, d) of the cell that begins in the middle of the image."""
    if out.ndim == 4:
        return out[:, :, out.shape[2] // 2, out.shape[3] // 2]
    side = model.config.image_size[0] // model.strides[0][0]
    return out[:, side * (side // 2) + side // 2 - side * side]


def outside(found: Tensor, cell: int, radius: float) -> float:
    """The share of the energy further than so many pixels from the middle of the unit's cell."""
    place = torch.arange(len(found)) + 0.5 - (len(found) + cell) / 2
    return float(found[torch.hypot(place[:, None], place) > radius].sum() / found.sum())


def cell_of(kind: str, model: Backbone, layer: int) -> int:
    return 2 ** (layer + 1) if kind == "CNN" else model.strides[0][0]


def energies(run: Trained, model: Backbone, number: int) -> list[Tensor]:
    images = unseen(run, number).images
    return [energy(model, block, images, run.recipe.train.seed) for block in model.blocks]


def cases(trial: Trial) -> Iterator[Case]:
    number = trial.choose(16, 64)
    for name, kind in (("base", "ViT"), ("cnn", "CNN")):
        runs = [trained(trial, name, seed) for seed in seeds(trial, name)]
        now = [energies(run, run.model, number) for run in runs]
        before = [energies(run, initial(run), number) for run in runs]
        yield reach(kind, now)
        if kind == "CNN":
            yield concentration(now)
        shares = far_shares(kind, runs[0].model, now)
        trial.keep(f"{kind}, trained", [each.value for each in shares])
        trial.keep(f"{kind}, initial weights", [each.value for each in far_shares(kind, runs[0].model, before)])
        for layer, share in enumerate(shares):
            if kind == "ViT" or layer == 0:
                says = document(kind)
                yield Case(f"{kind}, layer {layer + 1}: share of gradient energy from afar", share, document=says)


def reach(kind: str, found: list[list[Tensor]]) -> Case:
    side = len(found[0][0])
    return Case(
        f"{kind}, layer 1: share of pixels from which anything arrives",
        mean_of([float((first > 0).float().mean()) for first, *_ in found]),
        document=AtLeast(1.0) if kind == "ViT" else None,
        right=near(right(side if kind == "ViT" else convolutional_field(1), side), share=0.02),
    )


def concentration(found: list[list[Tensor]]) -> Case:
    """In the deepest layer whose field the image still holds whole."""
    side = len(found[0][0])
    layer = max(index for index in range(len(found[0])) if convolutional_field(index + 1) <= side)
    inner = convolutional_field(layer + 1) / 4
    return Case(
        f"CNN, layer {layer + 1}: share of gradient energy from outside the inner half of its field",
        mean_of([outside(maps[layer], 2 ** (layer + 1), inner) for maps in found]),
        document=AtMost(document_inner_half()),
    )


def far_shares(kind: str, model: Backbone, found: list[list[Tensor]]) -> list[Estimate]:
    """What comes from further than a quarter of the image, layer by layer."""
    return [
        mean_of([outside(each, cell_of(kind, model, layer), FAR * len(each)) for each in maps])
        for layer, maps in enumerate(zip(*found, strict=True))
    ]


def draw(outcome: Outcome) -> Figure:
    lines = {
        name: ([(layer + 1) / len(values) for layer in range(len(values))], values)
        for name, values in outcome.series.items()
    }
    return curves(lines, Axes("depth passed, as a share of the model", "gradient energy from afar"))
