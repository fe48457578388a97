"""Exercise 5: multi-head self-attention.

A single attention has one pattern of weights. Several heads attend in parallel, each with its own channels: with d
channels and h heads, a head has k = d/h of them.

    q, k, v = the three thirds of qkv(x)                    each (b, n, d)
    head i takes channels i·k to (i + 1)·k of each          (b, h, n, k)
    every head attends separately, softmax(q kᵀ / √k) v     (b, h, n, k)
    heads are concatenated again, head 0 first              (b, n, d)
    output = proj(…)                                        (b, n, d)

``qkv`` is a linear layer from d to 3·d dimensions: all queries first, then all keys, then all values. ``proj`` maps d
to d and mixes the heads. Both are given; call them like functions.

By hand: if all queries are 0, every token attends to all tokens uniformly, and gets the mean of the values. With
values equal to x and the identity as ``proj``, x = [[1, 2, 3, 4], [3, 4, 5, 6]] and h = 2 give [2, 3, 4, 5] twice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]


def self_attention(x: torch.Tensor, qkv: Linear, proj: Linear, num_heads: int) -> torch.Tensor:
    """Multi-head self-attention of tokens, (b, n, d) → (b, n, d)."""
    raise NotImplementedError("your turn")
