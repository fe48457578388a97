"""Last-block shortcut: in a ViT's last block, compute only the tokens that the classifier reads.

In the last block all tokens are needed as keys and values, but only the tokens that the heads read as queries:

    q = norm(z)[read] W_q        k, v = norm(z) W_k, norm(z) W_v        z = z[read] + softmax(q kᵀ / √k) v W_o
    z = z + mlp(norm(z))                                                for one token instead of all

which saves nearly all of the block's MLP and two of its four projections: 6.9 % of the MACs of a ViT-B/16. Models do
not do this by default; training, distillation teachers and acceleration (``deploy/shortcuts.py``) enable it.
"""

from __future__ import annotations

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import Attend, SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.layout import Layout
from vitreous.layers.position import Grid
from vitreous.layers.tokens import Tokens
from vitreous.models.base import Model
from vitreous.models.vit import ViT


class LastBlock(nn.Module):
    """A pre-norm block that takes all tokens and returns those in ``read``; it shares the submodules of ``block``.

    ``mixer(queries, context, layout=…)`` attends from some tokens to all.
    """

    def __init__(self, block: PreNormBlock, mixer: nn.Module, read: slice) -> None:
        super().__init__()
        self.read = read
        self.norm1, self.mixer, self.scale1 = block.norm1, mixer, block.scale1
        self.norm2, self.mlp, self.scale2 = block.norm2, block.mlp, block.scale2
        self.drop_path = block.drop_path

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b r d"]:
        normed = self.norm1(x)
        layout = Layout(Tokens(None, self.read.stop), Tokens(grid, num_prefix))
        mixed = self.mixer(normed[:, self.read], normed, layout=layout)
        x = x[:, self.read] + self.drop_path(self.scale1(mixed))
        return x + self.drop_path(self.scale2(self.mlp(self.norm2(x))))


class QueriedAttention(nn.Module):
    """Attention from some tokens to all, with the parameters of the self-attention ``mixer``, which stay trainable."""

    def __init__(self, mixer: SelfAttention) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(
        self, x: Float[Tensor, "b r d"], context: Float[Tensor, "b n d"], *, layout: Layout
    ) -> Float[Tensor, "b r d"]:
        mixer, heads = self.mixer, self.mixer.num_heads
        sizes = x.shape[-1], 2 * x.shape[-1]
        query_weight, key_value_weight = mixer.qkv.weight.split(sizes)
        query_bias, key_value_bias = (None, None) if mixer.qkv.bias is None else mixer.qkv.bias.split(sizes)
        q = rearrange(F.linear(x, query_weight, query_bias), "b r (h k) -> b h r k", h=heads)
        key_value = F.linear(context, key_value_weight, key_value_bias)
        k, v = rearrange(key_value, "b n (two h k) -> two b h n k", two=2, h=heads)
        out = mixer.attend(q, k, v, bias=None, layout=layout)
        return mixer.drop(mixer.proj(rearrange(out, "b h n k -> b n (h k)")))


def tokens_read(model: Model) -> slice | None:
    """Return the slice of prefix tokens that the heads read, or None if the shortcut does not apply to the model."""
    if not isinstance(model, ViT):
        return None
    read, last = model.read_tokens(model.num_prefix), model.blocks[-1]
    if read.stop is None or type(last) is not PreNormBlock or type(last.mixer) is not SelfAttention:
        return None
    if "forward" in vars(last) or "forward" in vars(last.mixer):  # already replaced
        return None
    mixer = last.mixer
    plain = type(mixer.qkv) is nn.Linear and type(mixer.attend) is Attend
    return read if plain and mixer.relative is None and mixer.rotary is None else None


def shorten_last_block(model: Model) -> None:
    """Make the last block of a ViT compute only the tokens that its heads read, where the shortcut applies.

    Call it before blocks are wrapped (compilation, checkpointing, sharding). Parameters, their names and the outputs
    do not change; hooks on submodules of the last block see only the tokens that are read.
    """
    read = tokens_read(model)
    if read is None:
        return
    assert isinstance(model, ViT)
    block = model.blocks[-1]
    assert isinstance(block, PreNormBlock)
    assert isinstance(block.mixer, SelfAttention)
    setattr(block, "forward", LastBlock(block, QueriedAttention(block.mixer), read).forward)  # noqa: B010
