"""Exercise 7: parameters and MACs of a ViT.

Write two formulas for a plain ViT with class token, learned positions, an MLP four times as wide as the model, and
biases in every layer. With 3 channels, P patches, N = P + 1 tokens, width D, L blocks and K classes, it consists of

    patch projection         3·p·p → D           LayerNorm          two per block and a final one, γ and β each
    class token              1 × D               queries, keys, values, output projection     four times D → D
    positions                N × D               MLP                D → 4D → D
                                                 head               D → K, applied to the class token only

1. ``parameters``: the number of learned parameters. A linear layer a → b has a·b weights and b biases.
2. ``macs``: multiply-accumulates for one image: a·b for every token a linear layer a → b is applied to. In addition,
   attention computes q kᵀ and weights · v: N·N·D each, over all heads together. Nothing else counts.

By hand, an image of 32 pixels, p = 16, D = 8, L = 1, K = 10; so P = 4 and N = 5:

    parameters    6,152 patches + 8 class token + 40 positions + 840 block + 16 + 32 norms + 90 head = 7,178
    MACs          24,576 patches + 1,280 projections + 400 attention + 2,560 MLP + 80 head = 28,896
"""

from __future__ import annotations


def parameters(image_size: int, patch_size: int, dim: int, depth: int, num_classes: int) -> int:
    """Number of learned parameters of a ViT for square images."""
    raise NotImplementedError("your turn")


def macs(image_size: int, patch_size: int, dim: int, depth: int, num_classes: int) -> int:
    """Number of multiply-accumulates for one image."""
    raise NotImplementedError("your turn")
