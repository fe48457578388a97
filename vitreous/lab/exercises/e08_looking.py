"""Exercise 8: how widely and how far attention looks.

Attention weights w (h, n, n) of a layer with h heads: row q says how much token q takes from every token k, and sums
to 1. Two numbers tell what a head does. Both are easily computed wrongly.

1. ``entropy``: how widely each query looks, from 0 (at one key) to ln n (at all evenly).

       H(q) = −Σₖ w(q, k) ln w(q, k)        0 ln 0 counts as 0        (h, n, n) → (h, n)

   By hand: w = [½, ½, 0, 0] has H = −2 · ½ ln ½ = ln 2 = 0.693.

2. ``mean_distance``: how far a head looks, in cells. The first ``num_prefix`` tokens (class token and the like) have no
   place: leave out their rows and columns, and divide every row that is left by its sum, so that it sums to 1 again.

       D = mean over cells q of Σₖ w(q, k) · √((y_q − y_k)² + (x_q − x_k)²)        (h, n, n) → (h,)

   Cells lie on the grid (rows, columns) in the order of patches, along the rows.
   By hand, three cells in one row and no prefix: cell 0 looks at cell 2 (distance 2), cell 1 at itself (0), and cell 2
   at all three evenly ((2 + 1 + 0)/3 = 1). So D = (2 + 0 + 1)/3 = 1.
"""

from __future__ import annotations

import torch


def entropy(weights: torch.Tensor) -> torch.Tensor:
    """(h, n, n) → (h, n)"""
    raise NotImplementedError("your turn")


def mean_distance(weights: torch.Tensor, grid: tuple[int, int], num_prefix: int) -> torch.Tensor:
    """(h, n, n) → (h,), in cells"""
    raise NotImplementedError("your turn")
