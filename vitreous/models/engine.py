"""Anything that runs a model: the model itself, or an accelerated one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from vitreous.models.base import Model
from vitreous.samples import Inputs
from vitreous.spec import Spec


@runtime_checkable
class Engine(Protocol):
    """Runs a model: prediction, evaluation and explanation need no more than this.

    ``model`` is the plain model, for whatever needs its features, gradients or attention; a model is its own engine.
    """

    @property
    def spec(self) -> Spec: ...

    @property
    def model(self) -> Model: ...

    def outputs(self, inputs: Inputs) -> dict[str, Tensor]: ...
