"""Exercise 2: scaled dot-product attention.

Every query asks all keys how well they fit, turns the answers into shares, and takes that mixture of the values:

    weights = softmax(q kᵀ / √d)        output = weights · v

The softmax runs over the keys, so that the shares of one query sum to 1.

    q (…, n, d)      k (…, m, d)      v (…, m, e)      weights (…, n, m)      output (…, n, e)

There may be any axes in front (images, heads), or none. n and m differ when one set of tokens asks another.

By hand, one query and two keys of width d = 4, so that √d = 2:

    q = [2, 0, 0, 0]      keys [1, 0, 0, 0] and [0, 1, 0, 0]      values [10] and [20]
    q kᵀ = [2, 0]         divided by √d: [1, 0]
    weights = [e¹, e⁰] / (e¹ + e⁰) = [0.731, 0.269]
    output = 0.731 · 10 + 0.269 · 20 = 12.69

Return both, output first. Tensors have @, transpose and softmax.
"""

from __future__ import annotations

import torch


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(…, n, d), (…, m, d), (…, m, e) → output (…, n, e), weights (…, n, m)"""
    raise NotImplementedError("your turn")
