"""Folding as an edit: one convolution in the place of every sum of branches (arithmetic in ``layers/reparam.py``)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import nn

from vitreous.layers.reparam import Foldable, fold_
from vitreous.models.base import Model
from vitreous.models.edit import Edit

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Fold(Edit):
    """Replace every sum of branches by the convolution that computes the same in evaluation mode."""

    name: ClassVar[str] = "fold"

    def apply(self, model: nn.Module) -> None:
        if isinstance(model, Foldable) or not fold_(model):
            raise ValueError(
                f"there is nothing to fold inside this {type(model).__name__}: it is folded already, "
                "or has no re-parameterized convolutions as FastViT has"
            )


def fold(model: Module) -> Module:
    """Return a copy of a model, in evaluation mode, with one convolution wherever the original has branches that fold.

    It computes the same with fewer and larger steps. Its ``edits`` say so, and it is saved and loaded like any other.
    """
    folded = copy.deepcopy(model)
    if isinstance(folded, Model):
        folded.edit(Fold())
    else:
        Fold().apply(folded)
    return folded.eval()
