"""What the ways of running a model have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)
Tell = Callable[[str], None]  # hears what is being done, in a few words


class Unfit(ValueError):
    """Why an engine cannot run this model on this machine, in one line; another engine is tried."""


def sharing_copy(model: Model) -> Model:
    """Modules of its own, to be taken apart, with the very same parameters and buffers."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
