"""Exercise 9: attention rollout, through all layers.

One layer's attention A gives the weights *in that layer*; but the tokens it mixes were mixed by the layers before.
Rollout traces them back to the patches. A layer's heads are averaged, and the residual connection is modeled by the
identity, with a weight of one half:

    Ã = ½ (mean over heads of A + I)        R = Ã_L ⋯ Ã₂ Ã₁        the last layer on the left

1. ``rollout``: a list of L matrices (b, h, n, n), the first layer first, queries as rows  →  R (b, n, n).

   By hand, two layers, one head, two tokens:

       A₁ = [½ ½]   Ã₁ = [¾ ¼]        A₂ = [0 1]   Ã₂ = [½ ½]        R = Ã₂ Ã₁ = [⅜ ⅝]
            [0 1]        [0 1]             [1 0]        [½ ½]                    [⅜ ⅝]

2. ``class_map``: the influence of every patch on the class token, token 0, as a small image. That is its row,
   without its own entry.  R (b, 1 + rows·columns, 1 + rows·columns), grid  →  (b, rows, columns).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def rollout(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Multiply L attention matrices (b, h, n, n) into the rollout (b, n, n)."""
    raise NotImplementedError("your turn")


def class_map(rolled: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Return the class token's row of the rollout on the grid, (b, n, n) → (b, rows, columns)."""
    raise NotImplementedError("your turn")
