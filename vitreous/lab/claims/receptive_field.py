"""How far a unit sees, by its gradient: attention can reach everywhere at once, a convolution grows step by step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import mean_of
from vitreous.lab.examined import convolutional_field, initial, unseen
from vitreous.lab.prediction import AtLeast, AtMost, Prediction, near
from vitreous.lab.sweep import Trained, seeds, trained
from vitreous.lab.trial import Trial
from vitreous.models.base import Backbone

CLAIM = Claim(
    title="The effective receptive field",
    statement="In a ViT the receptive field is global from the first layer on. In a CNN it grows with depth, and the "
    "effective one is much smaller than it could be and concentrated at its centre.",
    sources=(Source.PRINCIPLES, Source.DEEP_DIVE, Source.FOUNDATIONS, Source.PIXELS, Source.MODERN),
    formula="",
    right="Every pixel can reach a ViT's unit in layer 1, and the field of a CNN is as narrow as counted. How much really "
    "arrives from afar is another matter: the residual stream keeps a unit's own patch in the foreground.",
    right_formula="",
    meaning="Do not choose attention for its reach in layer 1 alone: measure where the gradients of your own model come "
    "from. Where distant evidence decides, give a CNN enough stages, dilation or one attention layer near the end.",
    axes=Axes("depth passed, as a share of the model", "gradient energy from afar"),
)
FAR = 0.25  # of the picture's side, from the middle of the unit's own cell


def document(kind: str, layer: int) -> Prediction | None:
    """A global field takes most of its energy from afar (an even spread would give 0.8), a local one little."""
    if kind == "ViT":
        return AtLeast(0.5)
    return AtMost(0.25) if layer == 0 else None


def document_inner_half() -> float:
    """Concentrated: outside the inner half of the possible field lies less than this (an even spread would give 0.8)."""
    return 0.25


def right(field: int, side: int) -> float:
    """The share of a square picture inside a field of so many pixels across."""
    return min(1.0, field / side) ** 2


def energy(model: Backbone, block: nn.Module, images: Tensor, seed: int) -> Tensor:
    """(y, x): squared gradient of the block's central unit, a random mix of its channels, by pixel."""
    kept: list[Tensor] = []
    handle = block.register_forward_hook(lambda module, given, out: kept.append(out))
    pictures = images.clone().requires_grad_()
    model(pictures)
    handle.remove()
    unit = central(kept[0], model)
    direction = torch.randn(unit.shape, generator=torch.Generator().manual_seed(seed))
    (gradient,) = torch.autograd.grad((unit * direction).sum(), pictures)
    return gradient.square().sum(dim=1).mean(dim=0)


def central(out: Tensor, model: Backbone) -> Tensor:
    """(b, d) of the cell that begins in the middle of the picture."""
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
    return [energy(model, block, images, run.recipe.train.seed) for block in model.blocks()]


def cases(trial: Trial) -> Iterator[Case]:
    number = trial.choose(16, 64)
    for name, kind in (("base", "ViT"), ("cnn", "CNN")):
        runs = [trained(trial, name, seed) for seed in seeds(trial, name)]
        now = [energies(run, run.model, number) for run in runs]
        yield reach(kind, now)
        if kind == "CNN":
            yield concentration(now)
        yield from by_depth(kind, "trained", runs[0].model, now)
        before = [energies(run, initial(run), number) for run in runs]
        yield from by_depth(kind, "initial weights", runs[0].model, before)


def reach(kind: str, found: list[list[Tensor]]) -> Case:
    side = len(found[0][0])
    return Case(
        f"{kind}, layer 1: share of pixels from which anything arrives",
        mean_of([float((first > 0).float().mean()) for first, *_ in found]),
        document=AtLeast(1.0) if kind == "ViT" else None,
        right=near(right(side if kind == "ViT" else convolutional_field(1), side), share=0.02),
    )


def concentration(found: list[list[Tensor]]) -> Case:
    """In the deepest layer whose field the picture still holds whole."""
    side = len(found[0][0])
    layer = max(index for index in range(len(found[0])) if convolutional_field(index + 1) <= side)
    inner = convolutional_field(layer + 1) / 4
    return Case(
        f"CNN, layer {layer + 1}: energy from outside the inner half of its field",
        mean_of([outside(maps[layer], 2 ** (layer + 1), inner) for maps in found]),
        document=AtMost(document_inner_half()),
    )


def by_depth(kind: str, state: str, model: Backbone, found: list[list[Tensor]]) -> Iterator[Case]:
    for layer, maps in enumerate(zip(*found, strict=True)):
        yield Case(
            f"{kind}, {state}, layer {layer + 1}: energy from afar",
            mean_of([outside(each, cell_of(kind, model, layer), FAR * len(each)) for each in maps]),
            document=document(kind, layer) if state == "trained" else None,
            right=AtMost(1.0),
            at=(layer + 1) / len(found[0]),
            group=f"{kind}, {state}",
        )
