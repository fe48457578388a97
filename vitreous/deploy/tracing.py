"""Trace a model with ``torch.export``, with a dynamic batch size and, where possible, dynamic height and width."""

from __future__ import annotations

import torch
from torch.export import Dim, ExportedProgram, export

from vitreous.deploy.formats import silence_exporters
from vitreous.layers.window import WindowAttention
from vitreous.models import find_family
from vitreous.models.base import Model
from vitreous.spec import Size

MAX_BATCH, MAX_SIDE = 65_536, 16_384


@torch.no_grad()
def trace(model: Model, image_size: Size, *, any_size: bool = False) -> ExportedProgram:
    """Trace for images of ``image_size``, or for any multiple of the coarsest stride from two cells up."""
    axes = {0: Dim("batch", min=1, max=MAX_BATCH)}
    if any_size:
        down, across = model.strides[-1]
        axes[2] = down * Dim("rows", min=2, max=MAX_SIDE // down)
        axes[3] = across * Dim("columns", min=2, max=MAX_SIDE // across)
        image_size = 3 * down, 5 * across  # unlike any other size of the model, so that the tracer does not specialize
    images = torch.zeros(2, model.config.num_channels, *image_size)
    with silence_exporters():
        return export(model, (images,), dynamic_shapes=(axes,), strict=False)


def why_fixed(model: Model, image_size: Size) -> str:
    """Return why a model can only be traced for ``image_size``; empty if height and width can be dynamic."""
    (down, across), (height, width) = model.strides[-1], image_size
    if height % down or width % across or height < 2 * down or width < 2 * across:
        return f"dynamic sizes must be multiples of {down}×{across}, and at least two cells each"
    if any(isinstance(module, WindowAttention) for module in model.modules()):
        return "its windows are partitioned for one size"
    family = find_family(model.config)
    if family is None or not family.exports_any_size:
        return "torch.export takes minutes with dynamic grids"
    return ""


def root_cause(error: BaseException) -> str:
    """Return the first line of the innermost exception in a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0]
