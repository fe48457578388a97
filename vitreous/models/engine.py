"""Engine: the interface shared by models and accelerated models."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from vitreous.models.base import Model
from vitreous.samples import Inputs
from vitreous.spec import Spec


@runtime_checkable
class Engine(Protocol):
    """Anything that computes a model's outputs: the model itself or an accelerated one.

    Prediction, evaluation and explanation accept any engine. ``model`` is the underlying PyTorch model, for features,
    gradients and attention; a model is its own engine.
    """

    @property
    def spec(self) -> Spec: ...

    @property
    def model(self) -> Model: ...

    def outputs(self, inputs: Inputs) -> dict[str, Tensor]: ...
