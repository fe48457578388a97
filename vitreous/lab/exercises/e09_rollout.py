"""Exercise 9: attention rollout, through all layers.

One layer's attention A says where a token looks *in that layer*; but what it finds there has been mixed by the layers
before. Rollout follows it back to the patches. A layer's heads are averaged, and the residual connection, which keeps
half of a token as it is, counts too:

    Ã = ½ (mean over heads of A + I)        R = Ã_L ⋯ Ã₂ Ã₁        the last layer on the left

1. ``rollout``: a list of L matrices (b, h, n, n), the first layer first, queries as rows  →  R (b, n, n).

   By hand, two layers, one head, two tokens:

       A₁ = [½ ½]   Ã₁ = [¾ ¼]        A₂ = [0 1]   Ã₂ = [½ ½]        R = Ã₂ Ã₁ = [⅜ ⅝]
            [0 1]        [0 1]             [1 0]        [½ ½]                    [⅜ ⅝]

2. ``class_map``: what the class token, token 0, has drawn from every patch, as a small image. That is its row,
   without its own place in it.  R (b, 1 + rows·columns, 1 + rows·columns), grid  →  (b, rows, columns).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def rollout(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    """L × (b, h, n, n) → (b, n, n)"""
    raise NotImplementedError("your turn")


def class_map(rolled: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """(b, n, n) → (b, rows, columns)"""
    raise NotImplementedError("your turn")
