"""Exercise 8: attention entropy and mean attention distance.

Attention weights w (h, n, n) of a layer with h heads: row q holds the weight that token q gives to every token k, and
sums to 1. Two numbers characterize a head. Both are easily computed wrongly.

1. ``entropy``: how widely each query attends, from 0 (one key) to ln n (all keys uniformly).

       H(q) = −Σₖ w(q, k) ln w(q, k)        0 ln 0 counts as 0        (h, n, n) → (h, n)

   By hand: w = [½, ½, 0, 0] has H = −2 · ½ ln ½ = ln 2 = 0.693.

2. ``mean_distance``: how far a head attends, in cells. The first ``num_prefix`` tokens (such as the class token) have
   no position: drop their rows and columns, and divide every remaining row by its sum, so that it sums to 1 again.

       D = mean over cells q of Σₖ w(q, k) · √((y_q − y_k)² + (x_q − x_k)²)        (h, n, n) → (h,)

   Cells lie on the grid (rows, columns) in the order of patches, row by row.
   By hand, three cells in one row and no prefix: cell 0 attends to cell 2 (distance 2), cell 1 to itself (0), and
   cell 2 to all three uniformly ((2 + 1 + 0)/3 = 1). So D = (2 + 0 + 1)/3 = 1.
"""

from __future__ import annotations

import torch


def entropy(weights: torch.Tensor) -> torch.Tensor:
    """Entropy of each query's weights, (h, n, n) → (h, n)."""
    raise NotImplementedError("your turn")


def mean_distance(weights: torch.Tensor, grid: tuple[int, int], num_prefix: int) -> torch.Tensor:
    """Mean attention distance of each head in cells, (h, n, n) → (h,)."""
    raise NotImplementedError("your turn")
