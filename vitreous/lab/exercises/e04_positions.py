"""Exercise 4: tables of positions, made of waves and for any size.

Attention does not see where a token sits (exercise 3), so a vector that says so is added to each. Two functions.

1. ``sincos``: fixed waves for a grid of cells. The first half of the channels encodes the row y of a cell, the second
   half its column x, each in the same way. With h = dim/2 channels for a place p, and i = 0, 1, … h/2 − 1:

       PE[p, 2i] = sin(p / T^(2i/h))        PE[p, 2i + 1] = cos(p / T^(2i/h))        T = 10,000

   (rows, columns), dim  →  (rows · columns, dim), cells in the order of patches: along the rows.
   By hand, grid (2, 2) and dim 4, so h = 2 and i = 0 only: the cell y = 1, x = 0 gets
   [sin 1, cos 1, sin 0, cos 0] = [0.841, 0.540, 0, 1].

2. ``resample``: a table that was learned for one grid, for another one, so that a model can read larger images. The
   first ``num_prefix`` rows belong to the class token and the like, which have no place: they stay as they are. The
   others are a small image with d channels, and are scaled like one:

       torch.nn.functional.interpolate(image, size=new_grid, mode="bicubic", antialias=True)

   which wants (1, d, rows, columns).  (num_prefix + n, d)  →  (num_prefix + m, d).
   By hand: a class row of sevens above cells that are all 5 becomes a class row of sevens above more fives.
"""

from __future__ import annotations

import torch


def sincos(grid: tuple[int, int], dim: int) -> torch.Tensor:
    """(rows · columns, dim)"""
    raise NotImplementedError("your turn")


def resample(
    table: torch.Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix: int
) -> torch.Tensor:
    """(num_prefix + n, d) → (num_prefix + m, d)"""
    raise NotImplementedError("your turn")
