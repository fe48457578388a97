"""Attention has 4D² parameters, the MLP 8D², a LayerNorm 2D: the text omits the output projection."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.prediction import near
from vitreous.lab.trial import Trial
from vitreous.layers.block import Block
from vitreous.models import create_model
from vitreous.models.vit import ViT

CLAIM = Claim(
    title="Parameters of a block",
    statement="In a block of width D, multi-head attention has 3D² parameters, the MLP with a hidden layer of 4D has "
    "8D², layer normalization has 2D, the residual connections have none.",
    sources=(Source.PIXELS,),
    formula=r"3 D^2 + 8 D^2 + 2 D",
    right="Attention has a fourth matrix, which mixes the heads' outputs: 4D² and biases. A LayerNorm has 2D, and a "
    "block has two of them.",
    right_formula=r"(4 D^2 + 4 D) + (8 D^2 + 5 D) + 2 \cdot 2 D = 12 D^2 + 13 D",
    meaning="12 · depth · D² gives the size of any plain ViT to within a few percent; with eleven instead of "
    "twelve, ViT-B's twelve blocks come out 7 million short. Two thirds of the parameters are in the MLP: pruning or "
    "narrowing pays most there.",
)


def document(part: str, d: int) -> int:
    attention, mlp, norm = 3 * d**2, 8 * d**2, 2 * d
    return {"attention": attention, "MLP": mlp, "one LayerNorm": norm, "the whole block": attention + mlp + norm}[part]


def right(part: str, d: int) -> int:
    attention, mlp, norm = 4 * d**2 + 4 * d, 8 * d**2 + 5 * d, 2 * d
    return {"attention": attention, "MLP": mlp, "one LayerNorm": norm, "the whole block": attention + mlp + 2 * norm}[
        part
    ]


def measure(model: str) -> tuple[int, dict[str, int]]:
    """Return the width of a model and the parameter counts of the parts of its first block."""
    with torch.device("meta"):
        built = create_model(model, depth=1)
        block = built.blocks[0]
    assert isinstance(built, ViT)
    assert isinstance(block, Block)
    parts = {"attention": block.mixer, "MLP": block.mlp, "one LayerNorm": block.norm1, "the whole block": block}
    return built.config.dim, {name: count_parameters(part) for name, part in parts.items()}


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def cases(trial: Trial) -> Iterator[Case]:
    for model, short in (("vit_tiny_16", "ViT-Ti"), ("vit_base_16", "ViT-B")):
        dim, parts = measure(model)
        for part, parameters in parts.items():
            unit, name = (dim, "D") if part == "one LayerNorm" else (dim**2, "D²")
            yield Case(
                f"{short}, D = {dim}: {part}, in {name}",
                exactly(parameters / unit),
                document=near(document(part, dim) / unit, share=0.01),
                right=near(right(part, dim) / unit, share=0.001),
            )
