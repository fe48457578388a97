"""Exercise 3: does the order of the tokens matter?

Shuffle the tokens that go into a layer. Two things may happen that teaching texts like to confuse:

    equivariant    layer(shuffled x) = shuffled layer(x)        the answers move along with their tokens
    invariant      layer(shuffled x) = layer(x)                 the answer does not change at all

Attention without positions is equivariant. What comes after pooling over all tokens is invariant. Write the two
measurements: the largest absolute difference between both sides of each equation, over all numbers.

    layer: a function of tokens (b, n, d)      tokens (b, n, d)      order (n,), the old place of every new token

Only the first kind shuffles an output, and only it needs one that still has tokens, (b, n, …).

By hand, for the layer "running sum" (it is neither), tokens 1, 2, 3 and the order 2, 0, 1:

    layer(x) = 1, 3, 6         shuffled: 6, 1, 3
    shuffled x = 3, 1, 2       layer of it: 3, 4, 6
    equivariance gap = max(|3 − 6|, |4 − 1|, |6 − 3|) = 3
    invariance gap   = max(|3 − 1|, |4 − 3|, |6 − 6|) = 2

Return plain numbers (float). Index with order along the tokens' axis.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Layer = Callable[[torch.Tensor], torch.Tensor]


def equivariance_gap(layer: Layer, tokens: torch.Tensor, order: torch.Tensor) -> float:
    """The largest |layer(shuffled x) − shuffled layer(x)|"""
    raise NotImplementedError("your turn")


def invariance_gap(layer: Layer, tokens: torch.Tensor, order: torch.Tensor) -> float:
    """The largest |layer(shuffled x) − layer(x)|"""
    raise NotImplementedError("your turn")
