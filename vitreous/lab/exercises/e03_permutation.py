"""Exercise 3: does the order of the tokens matter?

Shuffle the tokens that go into a layer. Two properties that textbooks often confuse:

    equivariant    layer(shuffled x) = shuffled layer(x)        the outputs are permuted like the tokens
    invariant      layer(shuffled x) = layer(x)                 the output does not change at all

Attention without positions is equivariant. Pooling over all tokens makes the output invariant. Implement
both measurements: the largest absolute difference between the two sides of each equation, over all elements.

    layer: a function of tokens (b, n, d)      tokens (b, n, d)      order (n,), the old index of every new token

Only the first measurement shuffles an output, which must then still have tokens, (b, n, …).

By hand, for the layer "running sum" (which is neither), tokens 1, 2, 3 and the order 2, 0, 1:

    layer(x) = 1, 3, 6         shuffled: 6, 1, 3
    shuffled x = 3, 1, 2       layer of it: 3, 4, 6
    equivariance gap = max(|3 − 6|, |4 − 1|, |6 − 3|) = 3
    invariance gap   = max(|3 − 1|, |4 − 3|, |6 − 6|) = 2

Return Python floats. Index with order along the token axis.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Layer = Callable[[torch.Tensor], torch.Tensor]


def equivariance_gap(layer: Layer, tokens: torch.Tensor, order: torch.Tensor) -> float:
    """Return the largest |layer(shuffled x) − shuffled layer(x)|."""
    raise NotImplementedError("your turn")


def invariance_gap(layer: Layer, tokens: torch.Tensor, order: torch.Tensor) -> float:
    """Return the largest |layer(shuffled x) − layer(x)|."""
    raise NotImplementedError("your turn")
