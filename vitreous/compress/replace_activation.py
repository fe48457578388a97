"""Another activation in every MLP: for weights trained with one, or to trade GELU for what an integer kernel can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import nn

from vitreous.models.base import Model
from vitreous.models.edit import Edit

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, "tanh"),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "hard_swish": nn.Hardswish,
}


@dataclass(frozen=True, kw_only=True)
class ReplaceActivation(Edit):
    """W₂ · act(W₁ x) with another ``act`` in the MLP of every block; the model's answers change until it is trained."""

    name: ClassVar[str] = "replace_activation"
    act: Literal["gelu", "gelu_tanh", "relu", "silu", "hard_swish"]

    def apply(self, model: Model) -> None:
        mlps = [mlp for name, mlp in model.named_modules() if name.split(".")[-1] == "mlp" and hasattr(mlp, "act")]
        if not mlps:
            raise ValueError(f"there is no MLP with an activation inside this {type(model).__name__}")
        for mlp in mlps:
            mlp.act = ACTIVATIONS[self.act]().train(mlp.training)
