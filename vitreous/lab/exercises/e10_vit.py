"""Exercise 10: a small ViT that learns something.

All parts are there: patches (1), attention (2) with heads (5) in blocks (6), positions (4). Put them together, and
train it. The parts below are the library's; take your own where you like ("from e01_patchify import patchify" finds
your file).

1. ``TinyViT.forward``: images (b, 3, y, x) → logits (b, classes). ``__init__`` has made what you need.

       patches → self.project → class token in front → + self.positions → blocks → self.norm → token 0 → self.head

   The first two steps stand there. ``self.class_token`` (1, 1, d) is the same for all images: ``expand`` it to
   (b, 1, d). A block is called as ``block(x, None)``. Logits are plain numbers: no softmax.

2. ``train_step``: one step of training. Forget the gradients of the step before (``optimizer.zero_grad()``), compute
   the cross-entropy of the logits, its gradients (``backward()``), let the optimizer move the weights (``step()``), and
   return the loss, as a plain number.

   By hand: two classes and the logits [0, 0] give the loss ln 2 = 0.693, whichever class is right.

The checks train your ViT to say which quarter of a noisy image is the bright one. Without positions it cannot know;
with them it is right nearly always after a few seconds.
"""

from __future__ import annotations

import torch
from torch import nn

from vitreous.layers.attention import SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import patchify


class TinyViT(nn.Module):
    """A ViT for square images of three colors"""

    def __init__(
        self, image_size: int, patch_size: int, dim: int, depth: int, num_heads: int, num_classes: int
    ) -> None:
        super().__init__()
        side = image_size // patch_size
        context = MixerContext(dim=dim, num_heads=num_heads, grid=(side, side))
        self.patch_size = patch_size
        self.project = nn.Linear(3 * patch_size * patch_size, dim)
        self.class_token = nn.Parameter(0.3 * torch.randn(1, 1, dim))
        self.positions = nn.Parameter(0.3 * torch.randn(1, 1 + side**2, dim))  # ViT's 0.02 learns later
        self.blocks = nn.ModuleList(PreNormBlock(dim, SelfAttention(context), Mlp(dim, 4 * dim)) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(b, 3, y, x) → (b, classes)"""
        x = self.project(patchify(images, (self.patch_size, self.patch_size)))
        raise NotImplementedError(f"your turn; tokens of shape {tuple(x.shape)} are made already")


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """One step; the loss before it"""
    raise NotImplementedError("your turn")
