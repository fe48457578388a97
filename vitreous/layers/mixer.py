"""Token mixers: the interface of attention and its alternatives, chosen by name or by options.

A token mixer is a module ``(tokens, grid, num_prefix) → tokens``. Its options are a frozen dataclass such as
``Performer(num_features=128)``, whose ``build(context)`` makes the module for one block of a model:
``PerformerAttention(context, num_features=128)``. ``layers/mixers.py`` registers all of them by name.
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
    """What a mixer needs to know about its block and model: widths, grid, position encoding, rates."""

    dim: int
    num_heads: int
    grid: Grid  # for the configured image size; other sizes may occur at run time
    num_prefix: int = 0
    position: Literal["added", "relative", "rope"] = "added"  # to the tokens; otherwise in the mixer
    stage: int = 0  # 0 is the finest
    index: int = 0  # of the block in its stage
    drops_tokens: bool = False  # in training some cells are missing
    qkv_bias: bool = True
    proj_bias: bool = True
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0

    @property
    def head_dim(self) -> int:
        check_heads(self.dim, self.num_heads)
        return self.dim // self.num_heads

    def make_qkv(self) -> nn.Linear:
        """Create the fused projection of tokens to queries, keys and values."""
        check_heads(self.dim, self.num_heads)
        return nn.Linear(self.dim, 3 * self.dim, bias=self.qkv_bias)


def check_heads(dim: int, num_heads: int) -> None:
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"dim must be a multiple of num_heads, got dim={dim}, num_heads={num_heads}")


@dataclass(frozen=True, kw_only=True)
class Mixer(Named):
    """Options of a token mixer; subclass it, implement :meth:`make` and register it in ``layers/mixers.py``.

    ``no_prefix``, ``no_token_drop`` and ``no_position`` hold the reasons why a mixer does not support prefix tokens,
    token dropping or a position encoding; an empty reason means that it does.
    """

    key: ClassVar[str] = "mixer"
    no_prefix: ClassVar[str] = ""
    no_token_drop: ClassVar[str] = "it needs every cell's neighbors"
    no_position: ClassVar[Mapping[str, str]] = {
        "relative": "it never forms the logits that a relative bias is added to",
        "rope": "it does not rotate queries and keys",
    }

    def build(self, context: MixerContext) -> nn.Module:
        """Create the module, or raise a ValueError with the reason why the mixer does not fit this context."""
        if context.num_prefix and self.no_prefix:
            raise ValueError(
                f"mixer {self.name!r} does not support prefix tokens ({self.no_prefix}); "
                "use a model without them, in many families class_token=False (and pool='mean' in a ViT)"
            )
        if context.drops_tokens and self.no_token_drop:
            raise ValueError(
                f"mixer {self.name!r} does not support token_drop_rate ({self.no_token_drop}); set it to 0"
            )
        if reason := self.no_position.get(context.position):
            raise ValueError(
                f"mixer {self.name!r} does not support position={context.position!r} ({reason}); choose 'learned'"
            )
        return self.make(context)

    @abstractmethod
    def make(self, context: MixerContext) -> nn.Module:
        """Create the module; :meth:`build` has checked that the context is supported."""

    def for_stage(self, values: tuple[Any, ...], context: MixerContext) -> Any:
        """Select the stage's value; the last value applies to all further stages."""
        return values[min(context.stage, len(values) - 1)]

    @classmethod
    def table(cls) -> Mapping[str, Mixer]:
        from vitreous.layers.mixers import MIXERS  # here, since the table imports all mixers and they this file

        return MIXERS
