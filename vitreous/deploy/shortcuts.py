"""What a model may leave out when only its outputs are needed: the same numbers to the last digits, for less work.

The last block of a ViT computes only the tokens that its heads read (``models/last_block.py``), branches that fold into
one convolution are folded (``layers/reparam.py``), and what only training needs is gone.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.engine import sharing_copy
from vitreous.layers.attention import CrossAttention, SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.drop import DropPath
from vitreous.layers.reparam import fold_
from vitreous.models.base import Model
from vitreous.models.last_block import LastBlock, tokens_read
from vitreous.models.vit import ViT


class Shortened(nn.Module):
    """A model that gives logits and nothing else; ``saved`` says in words what it leaves out, "" if nothing.

    ``read`` is the number of first tokens that the logits are read from, 0 if it is all cells.
    """

    def __init__(self, inner: Model, saved: str) -> None:
        super().__init__()
        self.inner = inner
        self.saved = saved
        self.read = (inner.read_tokens(inner.num_prefix).stop or 0) if isinstance(inner, ViT) else 0

    def forward(self, images: Float[Tensor, "b c y x"]) -> Any:
        return self.inner(images)

    @property
    def blocks(self) -> nn.ModuleList | list[nn.Module]:
        return self.inner.blocks


def answer_only(model: Model) -> Shortened:
    """The shortest way to a model's logits in evaluation. The model stays as it is, and its weights are shared.

    Folded convolutions are the exception: they are made of the weights as these are now.
    """
    short = sharing_copy(model)
    saved = [words for shortcut in (shorten_last_block, fold_branches) if (words := shortcut(short))]
    forget_training(short)
    return Shortened(short, "; ".join(saved)).eval()


def shorten_last_block(model: Model) -> str:
    """Compute only the tokens that the heads read in the last block of a ViT, where the prefix holds all of them."""
    read = tokens_read(model)
    if read is None:
        return ""
    assert isinstance(model, ViT)
    last = model.blocks[-1]
    assert isinstance(last, PreNormBlock)
    assert isinstance(last.mixer, SelfAttention)
    model.blocks[-1] = LastBlock(last, apart(last.mixer), read)
    return f"the last block computes {'one token' if read.stop == 1 else f'{read.stop} tokens'} and not all"


def apart(mixer: SelfAttention) -> CrossAttention:
    """Self-attention with its queries apart from its keys and values, so that some tokens can attend to all."""
    dim = mixer.proj.in_features
    with torch.device("meta"):
        split = CrossAttention(dim, mixer.num_heads)
    split.q, split.kv = some_rows(mixer.qkv, slice(0, dim)), some_rows(mixer.qkv, slice(dim, None))
    split.attend, split.proj = mixer.attend, mixer.proj
    return split


def some_rows(linear: nn.Linear, rows: slice) -> nn.Linear:
    """Some outputs of a linear layer: its weights' own memory, seen in part."""
    weight = linear.weight.detach()[rows]
    part = nn.Linear(linear.in_features, len(weight), bias=linear.bias is not None, device="meta")
    part.weight = nn.Parameter(weight, requires_grad=False)
    if linear.bias is not None:
        part.bias = nn.Parameter(linear.bias.detach()[rows], requires_grad=False)
    return part


def fold_branches(model: Model) -> str:
    count = fold_(model)
    return f"{count} sums of branches are one convolution each" if count else ""


def forget_training(model: nn.Module) -> None:
    """Nothing in the place of what does nothing in evaluation."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout | DropPath):
                setattr(parent, name, nn.Identity())
