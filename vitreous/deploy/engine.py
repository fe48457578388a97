"""Where an engine comes from: a weights file, a model, or an accelerated one."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import nn

from vitreous.models.engine import Engine
from vitreous.weights.load import load

AnyModule = TypeVar("AnyModule", bound=nn.Module)
Tell = Callable[[str], None]  # hears what is being done, in a few words
Wanted = Literal["eager", "auto"]


class Unfit(ValueError):
    """Why an engine cannot run this model on this machine, in one line; another engine is tried."""


def find_engine(source: Any, *, model: str | None = None) -> Engine:
    """An engine as it is, or the model of a weights file."""
    if isinstance(source, str | os.PathLike):
        return load(source, model=model)
    if model is not None:
        raise ValueError(f"model names what a weights file holds, and this is a model already; leave out {model!r:.80}")
    if isinstance(source, nn.Module) and not isinstance(source, Engine):
        source = getattr(source, "_orig_mod", source)  # what torch.compile wraps
    if not isinstance(source, Engine):
        raise ValueError(
            f"a weights file, a Vitreous model or an accelerated one is needed, got {type(source).__name__}"
        )
    return source


def sharing_copy(model: AnyModule) -> AnyModule:
    """Modules of its own, to be taken apart, with the very same parameters and buffers."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
