"""A model as a graph without Python: for any batch and, where the model allows it, for any height and width."""

from __future__ import annotations

import torch
from torch.export import Dim, ExportedProgram, export

from vitreous.deploy.formats import quietly
from vitreous.layers.window import WindowAttention
from vitreous.models import find_family
from vitreous.models.base import Model
from vitreous.spec import Size

LARGEST_BATCH, LARGEST_SIDE = 65_536, 16_384


@torch.no_grad()
def trace(model: Model, image_size: Size, *, any_size: bool = False) -> ExportedProgram:
    """The graph for images of ``image_size``, or of whatever multiple of the coarsest stride from two cells on."""
    axes = {0: Dim("batch", min=1, max=LARGEST_BATCH)}
    if any_size:
        down, across = model.strides[-1]
        axes[2] = down * Dim("rows", min=2, max=LARGEST_SIDE // down)
        axes[3] = across * Dim("columns", min=2, max=LARGEST_SIDE // across)
        image_size = 3 * down, 5 * across  # numbers that mean nothing else, so that no guard is taken for granted
    images = torch.zeros(2, model.config.num_channels, *image_size)
    with quietly():
        return export(model, (images,), dynamic_shapes=(axes,), strict=False)


def why_fixed(model: Model, image_size: Size) -> str:
    """Why a model is traced for ``image_size`` alone; empty where any height and width may do."""
    (down, across), (height, width) = model.strides[-1], image_size
    if height % down or width % across or height < 2 * down or width < 2 * across:
        return f"free ones would have to be multiples of {down}×{across}, and at least two of them"
    if any(isinstance(module, WindowAttention) for module in model.modules()):
        return "windows are cut for one size"
    family = find_family(model.config)
    if family is None or not family.exports_any_size:
        return "with grids as symbols torch.export takes minutes"
    return ""


def root_cause(error: BaseException) -> str:
    """The first line of what went wrong at the bottom, below the layers of tools that pass it on."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0]
