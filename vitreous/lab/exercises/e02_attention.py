"""Exercise 2: scaled dot-product attention.

Every query is compared with all keys; the scores become weights, and the output is the weighted mean of the values:

    weights = softmax(q kᵀ / √d)        output = weights · v

The softmax is taken over the keys, so that the weights of one query sum to 1.

    q (…, n, d)      k (…, m, d)      v (…, m, e)      weights (…, n, m)      output (…, n, e)

There may be any leading axes (images, heads), or none. n and m differ in cross-attention.

By hand, one query and two keys of width d = 4, so that √d = 2:

    q = [2, 0, 0, 0]      keys [1, 0, 0, 0] and [0, 1, 0, 0]      values [10] and [20]
    q kᵀ = [2, 0]         divided by √d: [1, 0]
    weights = [e¹, e⁰] / (e¹ + e⁰) = [0.731, 0.269]
    output = 0.731 · 10 + 0.269 · 20 = 12.69

Return both, output first. Use @, transpose and softmax.
"""

from __future__ import annotations

import torch


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output (…, n, e) and the weights (…, n, m) of q (…, n, d), k (…, m, d) and v (…, m, e)."""
    raise NotImplementedError("your turn")
