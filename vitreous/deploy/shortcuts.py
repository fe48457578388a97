"""What a model may leave out when only its logits are asked for: the same answer to the last digits, for less work.

In the last block of a ViT that is read at its class token all tokens must answer, but only that token has to ask:

    q = norm(z)[class] W_q        k, v = norm(z) W_k, norm(z) W_v        z = z[class] + softmax(q kᵀ / √k) v W_o
    z = z + mlp(norm(z))                                                 for one token in place of all

which spares that block nearly all of its MLP and two of its four projections: 6.9 % of the products of a ViT-B/16.
Branches that fold into one convolution are folded (``layers/reparam.py``), and what only training needs is gone.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.engine import sharing_copy
from vitreous.layers.attention import CrossAttention, SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.drop import DropPath
from vitreous.layers.layout import Layout
from vitreous.layers.position import Grid
from vitreous.layers.reparam import fold_
from vitreous.layers.tokens import Tokens
from vitreous.models.base import Backbone
from vitreous.models.vit import ViT


class Shortened(nn.Module):
    """A model that gives logits and nothing else; ``saved`` says in words what it leaves out, "" if nothing.

    ``read`` is the number of first tokens that the logits are read from, 0 if it is all cells.
    """

    def __init__(self, inner: Backbone, saved: str) -> None:
        super().__init__()
        self.inner = inner
        self.saved = saved
        self.read = (inner.answering(inner.num_prefix).stop or 0) if isinstance(inner, ViT) else 0

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        logits: Tensor = self.inner(images)
        return logits

    def blocks(self) -> list[nn.Module]:
        return self.inner.blocks()


def answer_only(model: Backbone) -> Shortened:
    """The shortest way to a model's logits in evaluation. The model stays as it is, and its weights are shared.

    Folded convolutions are the exception: they are made of the weights as these are now.
    """
    short = sharing_copy(model)
    saved = [words for shortcut in (ask_with_few, fold_branches) if (words := shortcut(short))]
    forget_training(short)
    return Shortened(short, "; ".join(saved)).eval()


class LastBlock(nn.Module):
    """A block after which only the tokens ``read`` are needed: it takes all of them and gives those."""

    def __init__(self, block: PreNormBlock, mixer: CrossAttention, read: slice) -> None:
        super().__init__()
        self.read = read
        self.norm1, self.mixer, self.scale1 = block.norm1, mixer, block.scale1
        self.norm2, self.mlp, self.scale2 = block.norm2, block.mlp, block.scale2

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b r d"]:
        normed = self.norm1(x)
        layout = Layout(Tokens(None, self.read.stop), Tokens(grid, num_prefix))
        found = self.mixer(normed[:, self.read], normed, layout=layout)
        x = x[:, self.read] + self.scale1(found)
        return x + self.scale2(self.mlp(self.norm2(x)))


def ask_with_few(model: Backbone) -> str:
    """Let only the tokens that the heads read ask in the last block of a ViT, where the prefix holds all of them."""
    if not isinstance(model, ViT):
        return ""
    read, last = model.asking(), model.layers[-1]
    if read is None:
        return ""
    assert isinstance(last, PreNormBlock)
    assert isinstance(last.mixer, SelfAttention)
    model.layers[-1] = LastBlock(last, asking(last.mixer), read)
    return f"the last block computes {'one token' if read.stop == 1 else f'{read.stop} tokens'} and not all"


def asking(mixer: SelfAttention) -> CrossAttention:
    """Self-attention with its queries apart from its keys and values, so that some tokens can ask all."""
    dim = mixer.proj.in_features
    with torch.device("meta"):
        apart = CrossAttention(dim, mixer.num_heads)
    apart.q, apart.kv = some_rows(mixer.qkv, slice(0, dim)), some_rows(mixer.qkv, slice(dim, None))
    apart.attend, apart.proj = mixer.attend, mixer.proj
    return apart


def some_rows(linear: nn.Linear, rows: slice) -> nn.Linear:
    """Some outputs of a linear layer: its weights' own memory, seen in part."""
    weight = linear.weight.detach()[rows]
    part = nn.Linear(linear.in_features, len(weight), bias=linear.bias is not None, device="meta")
    part.weight = nn.Parameter(weight, requires_grad=False)
    if linear.bias is not None:
        part.bias = nn.Parameter(linear.bias.detach()[rows], requires_grad=False)
    return part


def fold_branches(model: Backbone) -> str:
    count = fold_(model)
    return f"{count} sums of branches are one convolution each" if count else ""


def forget_training(model: nn.Module) -> None:
    """Nothing in the place of what does nothing in evaluation."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout | DropPath):
                setattr(parent, name, nn.Identity())
