"""What every token mixer has in common: it is chosen by name or by its options, and built from its context.

A mixer is a module ``(tokens, grid, num_prefix) → tokens``. Beside it stand its options, a frozen dataclass such as
``Performer(num_features=128)``, whose ``build(context)`` makes the module. The module takes the context first and its
own options after it: ``PerformerAttention(context, num_features=128)``. ``layers/mixers.py`` is the table of them all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from vitreous.layers.position import Grid
from vitreous.options import Named


@dataclass(frozen=True, kw_only=True)
class MixerContext:
    """What a mixer must know of the model around it."""

    dim: int
    num_heads: int
    grid: Grid  # of the image size that the model is built for; others come at run time
    num_prefix: int = 0
    position: Literal["added", "relative", "rope"] = "added"  # added to the tokens, or a matter of the mixer
    stage: int = 0  # counted from the finest
    index: int = 0  # of the block in its stage
    drops_tokens: bool = False  # in training the grid has holes
    qkv_bias: bool = True
    proj_bias: bool = True
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0

    @property
    def head_dim(self) -> int:
        check_heads(self.dim, self.num_heads)
        return self.dim // self.num_heads

    def make_qkv(self) -> nn.Linear:
        """The projection of a token to its query, key and value, side by side."""
        check_heads(self.dim, self.num_heads)
        return nn.Linear(self.dim, 3 * self.dim, bias=self.qkv_bias)


def check_heads(dim: int, num_heads: int) -> None:
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"dim must be a multiple of num_heads, got dim={dim}, num_heads={num_heads}")


@dataclass(frozen=True, kw_only=True)
class Mixer(Named):
    """Options of a mixer. The three reasons say why it cannot serve somewhere; an empty one means that it can."""

    key: ClassVar[str] = "mixer"
    no_prefix: ClassVar[str] = ""
    no_holes: ClassVar[str] = "it looks at neighbors on the grid"
    no_position: ClassVar[Mapping[str, str]] = {
        "relative": "it never forms the logits that a relative bias is added to",
        "rope": "it does not turn queries and keys",
    }

    def build(self, context: MixerContext) -> nn.Module:
        """The module, or an error that says why this mixer cannot serve in this context."""
        if context.num_prefix and self.no_prefix:
            raise ValueError(
                f"mixer {self.name!r} cannot serve with prefix tokens ({self.no_prefix}); "
                "choose a model without, in many families by class_token=False (and pool='mean' in a ViT)"
            )
        if context.drops_tokens and self.no_holes:
            raise ValueError(f"mixer {self.name!r} cannot serve with token_drop_rate ({self.no_holes}); set it to 0")
        if reason := self.no_position.get(context.position):
            raise ValueError(
                f"mixer {self.name!r} cannot serve with position={context.position!r} ({reason}); choose 'learned'"
            )
        return self.make(context)

    @abstractmethod
    def make(self, context: MixerContext) -> nn.Module:
        """The module for a context that has been found to suit."""

    def at(self, values: tuple[Any, ...], context: MixerContext) -> Any:
        """One of several values, by the stage: the last one serves all further stages."""
        return values[min(context.stage, len(values) - 1)]

    @classmethod
    def table(cls) -> Mapping[str, Mixer]:
        from vitreous.layers.mixers import MIXERS  # here, since the table imports all mixers and they this file

        return MIXERS
