"""Exercise 10: build and train a small ViT.

All parts exist: patches (1), attention (2) with heads (5) in blocks (6), positions (4). Assemble them and train the
model. The stub uses the library's parts; import your own if you like ("from e01_patchify import patchify" finds your
file).

1. ``TinyViT.forward``: images (b, 3, y, x) → logits (b, classes). ``__init__`` creates all parts.

       patches → self.project → class token in front → + self.positions → blocks → self.norm → token 0 → self.head

   The first two steps are done. ``self.class_token`` (1, 1, d) is the same for all images: ``expand`` it to
   (b, 1, d). A block is called as ``block(x, None)``. Return logits: no softmax.

2. ``train_step``: one training step. Reset the gradients (``optimizer.zero_grad()``), compute the cross-entropy of the
   logits and its gradients (``backward()``), update the weights (``step()``), and return the loss as a Python number.

   By hand: two classes and the logits [0, 0] give the loss ln 2 = 0.693, whichever class is correct.

The checks train your ViT to classify which quarter of a noisy image is bright. Without positions that is impossible;
with them its accuracy is nearly 100 % after a few seconds.
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
    """A ViT for square RGB images."""

    def __init__(
        self, image_size: int, patch_size: int, dim: int, depth: int, num_heads: int, num_classes: int
    ) -> None:
        super().__init__()
        side = image_size // patch_size
        context = MixerContext(dim=dim, num_heads=num_heads, grid=(side, side))
        self.patch_size = patch_size
        self.project = nn.Linear(3 * patch_size * patch_size, dim)
        self.class_token = nn.Parameter(0.3 * torch.randn(1, 1, dim))
        self.positions = nn.Parameter(
            0.3 * torch.randn(1, 1 + side**2, dim)
        )  # the usual std of 0.02 would need more steps
        self.blocks = nn.ModuleList(PreNormBlock(dim, SelfAttention(context), Mlp(dim, 4 * dim)) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, (b, 3, y, x) → (b, classes)."""
        x = self.project(patchify(images, (self.patch_size, self.patch_size)))
        raise NotImplementedError(f"your turn; tokens of shape {tuple(x.shape)} are ready")


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Run one training step and return the loss before the update."""
    raise NotImplementedError("your turn")
