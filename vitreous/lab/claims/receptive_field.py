"""How far a unit sees, by its gradient: attention can reach everywhere at once, a convolution grows step by step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.examined import convolutional_field, initial, unseen
from vitreous.lab.prediction import AtLeast, AtMost, near
from vitreous.lab.sweep import seeds, trained
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
FAR = 0.25  # of the picture's side, from the unit's own centre


def document(kind: str, layer: int) -> Prediction | None:
    """Global: most of the energy comes from afar, of which an even spread over the picture would give 0.8.

    Concentrated at the centre: little of it does, in the first layer of a CNN as in the last.
    """
    return AtLeast(0.5) if kind == "ViT" else AtMost(0.25)


def right_reach(field: int, side: int) -> float:
    """The share of a square picture inside a field of so many pixels across."""
    return min(1.0, field / side) ** 2


def energy(model: Backbone, block: nn.Module, images: Tensor, seed: int) -> Tensor:
    """(y, x): squared gradient of the block's central unit, a random mix of its channels, with respect to each pixel."""
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
    """(b, d) of the cell just behind the middle of the picture."""
    if out.ndim == 4:
        return out[:, :, out.shape[2] // 2, out.shape[3] // 2]
    side = model.config.image_size[0] // model.strides[0][0]
    return out[:, -side * side + side * (side // 2) + side // 2]


def from_afar(found: Tensor, cell: float) -> float:
    """The share of the energy more than a quarter of the picture away from the middle of the unit's cell."""
    side = found.shape[0]
    place = torch.arange(side) + 0.5 - (side / 2 + cell / 2)
    far = torch.hypot(place[:, None], place[None]) > FAR * side
    return float(found[far].sum() / found.sum())


def reach(run: Trained, number: int) -> float:
    """The share of pixels from which anything at all arrives in the first block."""
    first = run.model.blocks()[0]
    return float((energy(run.model, first, unseen(run, number).images, run.recipe.train.seed) > 0).float().mean())


def shares(run: Trained, model: Backbone, number: int) -> list[float]:
    """What comes from afar, block by block."""
    images, seed = unseen(run, number).images, run.recipe.train.seed
    side, found = images.shape[-1], []
    for block in model.blocks():
        cells = side // model.strides[0][0]
        handle_maps = energy(model, block, images, seed)
        found.append(from_afar(handle_maps, side / cells))
    return found


def cases(trial: Trial) -> Iterator[Case]:
    number = trial.choose(16, 64)
    for name, kind in (("base", "ViT"), ("cnn", "CNN")):
        runs = [trained(trial, name, seed) for seed in seeds(trial, name)]
        side = runs[0].recipe.model.image_size[0]
        field = side if kind == "ViT" else convolutional_field(1)
        yield Case(
            f"{kind}, layer 1: share of pixels that reach a unit at all",
            mean_of([reach(run, number) for run in runs]),
            document=AtLeast(1.0) if kind == "ViT" else None,
            right=near(right_reach(field, side), share=0.02),
        )
        yield from by_depth(kind, "trained", [shares(run, run.model, number) for run in runs])
        yield from by_depth(kind, "initial weights", [shares(run, initial(run), number) for run in runs])


def by_depth(kind: str, state: str, found: list[list[float]]) -> Iterator[Case]:
    for index, values in enumerate(zip(*found, strict=True)):
        says = document(kind, index) if state == "trained" else None
        yield Case(
            f"{kind}, {state}, layer {index + 1}: energy from afar",
            mean_of(values),
            document=says,
            right=AtMost(1.0),
            at=(index + 1) / len(found[0]),
            group=f"{kind}, {state}",
        )
