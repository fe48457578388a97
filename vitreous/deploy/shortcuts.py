"""Inference-only simplifications that leave a model's outputs unchanged up to rounding.

The last block of a ViT computes only the tokens that its heads read (``models/last_block.py``), re-parameterizable
branches are folded into one convolution (``layers/reparam.py``), and dropout and stochastic depth are removed.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.engine import copy_sharing_weights
from vitreous.layers.attention import CrossAttention, SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.drop import DropPath
from vitreous.layers.reparam import fold_
from vitreous.models.base import Model
from vitreous.models.last_block import LastBlock, tokens_read
from vitreous.models.vit import ViT


class InferenceModel(nn.Module):
    """A model simplified for inference. ``summary`` describes the simplifications, "" if there are none.

    ``num_read_tokens`` is the number of leading tokens that the heads read, 0 if they pool over all patches.
    """

    def __init__(self, inner: Model, summary: str) -> None:
        super().__init__()
        self.inner = inner
        self.summary = summary
        self.num_read_tokens = (inner.read_tokens(inner.num_prefix).stop or 0) if isinstance(inner, ViT) else 0

    def forward(self, images: Float[Tensor, "b c y x"]) -> Any:
        return self.inner(images)

    @property
    def blocks(self) -> nn.ModuleList | list[nn.Module]:
        return self.inner.blocks


def optimize_for_inference(model: Model) -> InferenceModel:
    """Return a simplified copy of a model in evaluation mode, which shares its weights; the model is left unchanged.

    Folded convolutions do not follow later changes of the weights.
    """
    simplified = copy_sharing_weights(model)
    steps = [description for step in (shorten_last_block, fold_branches) if (description := step(simplified))]
    remove_dropout(simplified)
    return InferenceModel(simplified, "; ".join(steps)).eval()


def shorten_last_block(model: Model) -> str:
    """Restrict the last block of a ViT to the tokens that the heads read, if those are prefix tokens."""
    read = tokens_read(model)
    if read is None:
        return ""
    assert isinstance(model, ViT)
    last = model.blocks[-1]
    assert isinstance(last, PreNormBlock)
    assert isinstance(last.mixer, SelfAttention)
    model.blocks[-1] = LastBlock(last, split_queries(last.mixer), read)
    return f"the last block computes only {'one token' if read.stop == 1 else f'{read.stop} tokens'}"


def split_queries(mixer: SelfAttention) -> CrossAttention:
    """Convert self-attention to cross-attention with the same weights, so that some tokens can attend to all."""
    dim = mixer.proj.in_features
    with torch.device("meta"):
        split = CrossAttention(dim, mixer.num_heads)
    split.q, split.kv = output_slice(mixer.qkv, slice(0, dim)), output_slice(mixer.qkv, slice(dim, None))
    split.attend, split.proj = mixer.attend, mixer.proj
    return split


def output_slice(linear: nn.Linear, rows: slice) -> nn.Linear:
    """Return a linear layer with some of the outputs, whose weights are views."""
    weight = linear.weight.detach()[rows]
    part = nn.Linear(linear.in_features, len(weight), bias=linear.bias is not None, device="meta")
    part.weight = nn.Parameter(weight, requires_grad=False)
    if linear.bias is not None:
        part.bias = nn.Parameter(linear.bias.detach()[rows], requires_grad=False)
    return part


def fold_branches(model: Model) -> str:
    count = fold_(model)
    return f"{count} multi-branch convolutions are folded" if count else ""


def remove_dropout(model: nn.Module) -> None:
    """Replace dropout and stochastic depth by ``nn.Identity``."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout | DropPath):
                setattr(parent, name, nn.Identity())
