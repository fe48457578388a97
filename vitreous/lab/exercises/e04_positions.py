"""Exercise 4: sinusoidal position embeddings, and resampling them.

Attention ignores where a token is (exercise 3), so a vector that encodes its position is added to each. Two functions:

1. ``sincos``: fixed sine waves for a grid of cells. The first half of the channels encodes the row y of a cell, the
   second half its column x, each in the same way. With h = dim/2 channels for a position p, and i = 0, 1, … h/2 − 1:

       PE[p, 2i] = sin(p / T^(2i/h))        PE[p, 2i + 1] = cos(p / T^(2i/h))        T = 10,000

   (rows, columns), dim  →  (rows · columns, dim), cells in the order of patches, row by row.
   By hand, grid (2, 2) and dim 4, so h = 2 and i = 0 only: the embedding of the cell y = 1, x = 0 is
   [sin 1, cos 1, sin 0, cos 0] = [0.841, 0.540, 0, 1].

2. ``resample``: interpolate a learned position table to another grid, so that a model can process larger images. The
   first ``num_prefix`` rows belong to prefix tokens such as the class token, which have no position: keep them. The
   others are a small image with d channels, and are resized like one:

       torch.nn.functional.interpolate(image, size=new_grid, mode="bicubic", antialias=True)

   which expects (1, d, rows, columns).  (num_prefix + n, d)  →  (num_prefix + m, d).
   By hand: a class row of sevens above cells that are all 5 stays a class row of sevens above more fives.
"""

from __future__ import annotations

import torch


def sincos(grid: tuple[int, int], dim: int) -> torch.Tensor:
    """Return sinusoidal position embeddings, (rows · columns, dim)."""
    raise NotImplementedError("your turn")


def resample(
    table: torch.Tensor, old_grid: tuple[int, int], new_grid: tuple[int, int], num_prefix: int
) -> torch.Tensor:
    """Resample a position table to another grid, (num_prefix + n, d) → (num_prefix + m, d)."""
    raise NotImplementedError("your turn")
