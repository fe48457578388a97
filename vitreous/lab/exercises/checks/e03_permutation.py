"""Checks of exercise 3."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.lab.exercises.checking import Answer, CheckFailed, require_equal, require_number
from vitreous.layers.attention import SelfAttention
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import SinCos

ORDER = torch.tensor([2, 0, 1])


def check_equivariance_example(equivariance_gap: Answer) -> None:
    """The example's equivariance gap is 3."""
    mistakes = (
        (2.0, "2 is the invariance gap: here layer(x) must be shuffled too, layer(x)[:, order]"),
        (
            5.0,
            "5 comes from shuffling an output that was shuffled already: shuffle layer(x), or undo the order with "
            "order.argsort()",
        ),
        (1.0, "signs cancel here: take absolute values first, then the maximum"),
        (9.0, "9 is the sum of the differences; return the largest"),
    )
    require_equal(
        require_number(equivariance_gap(running_sum, example(), ORDER)), 3.0, "the example is not reproduced", mistakes
    )


def check_attention_is_equivariant(equivariance_gap: Answer) -> None:
    """Attention without positions is equivariant."""
    gap = require_number(equivariance_gap(attention(), torch.randn(2, 6, 4), torch.randperm(6)))
    if gap > 1e-4:
        raise CheckFailed(
            f"the gap of self-attention is {gap:.3g}, not 0: shuffle layer(tokens) by the same order, along axis 1"
        )


def check_positions_break_it(equivariance_gap: Answer) -> None:
    """Attention with positions added to its tokens is not equivariant."""
    gap = require_number(equivariance_gap(with_positions(), torch.randn(2, 6, 4), torch.tensor([1, 2, 3, 4, 5, 0])))
    if gap < 1e-3:
        raise CheckFailed(
            f"a layer that adds positions has the gap {gap:.3g}, as if order did not matter: is the input shuffled "
            f"before it is passed to the layer?"
        )


def check_largest_difference(equivariance_gap: Answer) -> None:
    """The largest absolute difference counts, wherever it is."""
    for sign in (1.0, -1.0):
        tokens = torch.zeros(2, 3, 4)
        tokens[1, 2, 3] = 5.0
        gap = require_number(equivariance_gap(lambda x, sign=sign: first_token_only(x, sign), tokens, ORDER))
        mistakes = (
            (
                0.0,
                f"the second image differs by {sign * 5:g} in one number, and the gap is 0: compare all images, "
                f"and absolute values",
            ),
            (5.0 / 24, "this is a mean; a single large difference must not be averaged away"),
            (25.0, "differences are squared: take absolute values"),
        )
        require_equal(gap, 5.0, "the second image differs by 5 in one number, which must be the gap", mistakes)


def check_along_tokens(equivariance_gap: Answer) -> None:
    """Tokens are shuffled, not channels or images."""
    tokens = torch.randn(3, 3, 3)
    gap = require_number(equivariance_gap(lambda x: x * torch.tensor([1.0, 10.0, 100.0]), tokens, ORDER))
    if gap > 1e-4:
        raise CheckFailed(
            "a layer that treats all tokens the same has a gap: the channels were shuffled; index axis 1, [:, order]"
        )
    gap = require_number(equivariance_gap(lambda x: x * torch.tensor([1.0, 10.0, 100.0])[:, None, None], tokens, ORDER))
    if gap > 1e-4:
        raise CheckFailed(
            "a layer that treats all tokens the same has a gap: the images were shuffled; index axis 1, [:, order]"
        )


def check_invariance_example(invariance_gap: Answer) -> None:
    """The example's invariance gap is 2."""
    mistakes = (
        (3.0, "3 is the equivariance gap: here layer(x) must not be shuffled"),
        (1.0, "this is the mean of the differences, not the largest"),
    )
    require_equal(
        require_number(invariance_gap(running_sum, example(), ORDER)), 2.0, "the example is not reproduced", mistakes
    )


def check_pooling_is_invariant(invariance_gap: Answer) -> None:
    """Attention is not invariant; the mean over its tokens is."""
    layer, tokens, order = attention(), torch.randn(2, 6, 4), torch.tensor([1, 2, 3, 4, 5, 0])
    if require_number(invariance_gap(layer, tokens, order)) < 1e-3:
        raise CheckFailed(
            "plain attention is reported as invariant: its outputs are permuted with the tokens, so there must be a gap"
        )
    gap = require_number(invariance_gap(lambda x: layer(x).mean(dim=1), tokens, order))
    if gap > 1e-4:
        raise CheckFailed(
            f"the mean over all tokens has the gap {gap:.3g}, not 0: an output without tokens is not shuffled"
        )


def example() -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1)


def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(dim=1)


def first_token_only(x: Tensor, sign: float) -> Tensor:
    """Keep the first position and zero all others: the simplest layer that depends on positions."""
    return sign * torch.cat([x[:, :1], torch.zeros_like(x[:, 1:])], dim=1)


def attention() -> Answer:
    layer = SelfAttention(MixerContext(dim=4, num_heads=2, grid=(2, 3))).requires_grad_(False)
    return lambda x: layer(x, None)


def with_positions() -> Answer:
    layer, table = attention(), SinCos(4)((2, 3))
    return lambda x: layer(x + table)
