"""Exercise 5: self-attention with many heads.

One attention can only look one way. Several heads look side by side, each at its own share of the channels: with d
channels and h heads, a head has k = d/h of them.

    q, k, v = the three thirds of qkv(x)                    each (b, n, d)
    head i takes channels i·k to (i + 1)·k of each          (b, h, n, k)
    every head attends by itself, softmax(q kᵀ / √k) v      (b, h, n, k)
    heads stand side by side again, head 0 first            (b, n, d)
    output = proj(…)                                        (b, n, d)

``qkv`` is a linear layer from d to 3·d numbers: all queries first, then all keys, then all values. ``proj`` goes from
d to d and lets the heads talk to each other. Both are given; call them like functions.

By hand: where all queries are 0, every token looks at all tokens evenly, and gets the mean of the values. With values
equal to x and a ``proj`` that changes nothing, x = [[1, 2, 3, 4], [3, 4, 5, 6]] and h = 2 give [2, 3, 4, 5] twice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]


def self_attention(x: torch.Tensor, qkv: Linear, proj: Linear, num_heads: int) -> torch.Tensor:
    """(b, n, d) → (b, n, d)"""
    raise NotImplementedError("your turn")
