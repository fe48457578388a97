"""Exercise 1: cut an image into patches.

A transformer reads a sequence of vectors. To make an image one, cut it into square patches of p × p pixels and
flatten every patch to a row:

    (b, c, y, x)  →  (b, n, c·p·p)        n = (y/p) · (x/p)

Patches are ordered row by row, like words on a page: left to right, then the next row of patches. Within a patch all
pixels of the first channel come first, row by row, then those of the second channel, and so on. The sides y and x are
multiples of p, and may differ.

By hand, for one image with one channel and p = 2:

     0  1 |  2  3
     4  5 |  6  7          patch 0: [ 0,  1,  4,  5]      patch 1: [ 2,  3,  6,  7]
    ------+------          patch 2: [ 8,  9, 12, 13]      patch 3: [10, 11, 14, 15]
     8  9 | 10 11
    12 13 | 14 15

Use reshape, permute and flatten; no loop is needed.
"""

from __future__ import annotations

import torch


def patchify(images: torch.Tensor, p: int) -> torch.Tensor:
    """Cut images into flattened patches, (b, c, y, x) → (b, n, c·p·p)."""
    raise NotImplementedError("your turn")
