"""What all engines share: the interface types, and how an engine is found from a file or a model."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import nn

from vitreous.models.engine import Engine
from vitreous.weights.load import load

AnyModule = TypeVar("AnyModule", bound=nn.Module)
ProgressCallback = Callable[[str], None]  # called with a short description of each step
EngineMode = Literal["eager", "auto"]
Precision = Literal["fp32", "bf16", "int16", "int8"]


class EngineUnavailable(ValueError):
    """Raised with a one-line reason when an engine cannot run a model on this machine; the next engine is tried."""


def resolve_engine(source: Any, *, model: str | None = None) -> Engine:
    """Return ``source`` if it is an engine already, else load the model of a weights file."""
    if isinstance(source, str | os.PathLike):
        return load(source, model=model)
    if model is not None:
        raise ValueError(
            f"model={model!r:.80} is only for weights files, and a {type(source).__name__} was given; leave it out"
        )
    if isinstance(source, nn.Module) and not isinstance(source, Engine):
        source = getattr(source, "_orig_mod", source)  # what torch.compile wraps
    if not isinstance(source, Engine):
        raise ValueError(
            f"expected a weights file, a Vitreous model or an accelerated model, got {type(source).__name__}"
        )
    return source


def copy_sharing_weights(model: AnyModule) -> AnyModule:
    """Copy the modules of a model but share its parameters and buffers, so that the copy can be restructured."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
