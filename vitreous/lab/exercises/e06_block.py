"""Exercise 6: a transformer block with Pre-LN.

A block lets tokens talk to each other (attention), then lets each think by itself (MLP). Both are branches beside a
residual stream x that goes straight through, and what a branch reads is normalized first:

    x ← x + attention(norm1(x))
    x ← x + mlp(norm2(x))

The stream itself is never normalized: that is the difference to Post-LN, norm(x + attention(x)), and the reason why
gradients reach the first layer of a deep network unhindered, and why a last norm must follow the last block.

All four parts are given as functions of tokens (b, n, d) → (b, n, d).

By hand, with norms that halve, an attention that takes four times its input, an MLP that adds 1, and x = 2:

    norm1: 1      attention: 4      x = 2 + 4 = 6
    norm2: 3      mlp: 4            x = 6 + 4 = 10
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Part = Callable[[torch.Tensor], torch.Tensor]


def block(x: torch.Tensor, norm1: Part, attention: Part, norm2: Part, mlp: Part) -> torch.Tensor:
    """(b, n, d) → (b, n, d)"""
    raise NotImplementedError("your turn")
