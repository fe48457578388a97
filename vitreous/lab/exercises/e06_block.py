"""Exercise 6: a transformer block with Pre-LN.

A block first mixes tokens (attention), then transforms each token separately (MLP). Both are residual branches: their
normalized input comes from the residual stream x, and their output is added to it:

    x ← x + attention(norm1(x))
    x ← x + mlp(norm2(x))

The stream itself is never normalized, unlike in Post-LN, norm(x + attention(x)). That is why gradients reach the first
layer of a deep network undamped, and why a final norm must follow the last block.

All four parts are given as functions of tokens (b, n, d) → (b, n, d).

By hand, with norms that halve, an attention that multiplies by 4, an MLP that adds 1, and x = 2:

    norm1: 1      attention: 4      x = 2 + 4 = 6
    norm2: 3      mlp: 4            x = 6 + 4 = 10
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Part = Callable[[torch.Tensor], torch.Tensor]


def block(x: torch.Tensor, norm1: Part, attention: Part, norm2: Part, mlp: Part) -> torch.Tensor:
    """Apply a Pre-LN transformer block, (b, n, d) → (b, n, d)."""
    raise NotImplementedError("your turn")
