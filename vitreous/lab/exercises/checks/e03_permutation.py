"""Checks of exercise 3."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.lab.exercises.checking import Answer, Wrong, equal, numbered
from vitreous.layers.attention import SelfAttention
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import SinCos

ORDER = torch.tensor([2, 0, 1])


def check_equivariance_example(equivariance_gap: Answer) -> None:
    """The example's equivariance gap is 3."""
    mistakes = (
        (2.0, "2 is the invariance gap: here layer(x) has to be shuffled too, layer(x)[:, order]"),
        (
            5.0,
            "5 comes from shuffling an output that was shuffled already: shuffle layer(x), or undo the order with "
            "order.argsort()",
        ),
        (1.0, "signs cancel here: take absolute values first, and the largest of them"),
        (9.0, "9 is the sum of the differences; the largest is asked for"),
    )
    equal(numbered(equivariance_gap(running_sum, example(), ORDER)), 3.0, "the example does not come out", mistakes)


def check_attention_is_equivariant(equivariance_gap: Answer) -> None:
    """Attention without positions is equivariant."""
    gap = numbered(equivariance_gap(attention(), torch.randn(2, 6, 4), torch.randperm(6)))
    if gap > 1e-4:
        raise Wrong(
            f"the gap of self-attention is {gap:.3g}, not 0: shuffle layer(tokens) by the same order, along axis 1"
        )


def check_positions_break_it(equivariance_gap: Answer) -> None:
    """With positions added to its tokens it is not."""
    gap = numbered(equivariance_gap(with_positions(), torch.randn(2, 6, 4), torch.tensor([1, 2, 3, 4, 5, 0])))
    if gap < 1e-3:
        raise Wrong(
            f"a layer that adds positions gets the gap {gap:.3g}, as if order did not matter: is the input of the "
            f"layer shuffled, before it goes in?"
        )


def check_largest_difference(equivariance_gap: Answer) -> None:
    """The largest difference counts, wherever it is, whatever its sign."""
    for sign in (1.0, -1.0):
        tokens = torch.zeros(2, 3, 4)
        tokens[1, 2, 3] = 5.0
        gap = numbered(equivariance_gap(lambda x, sign=sign: first_token_only(x, sign), tokens, ORDER))
        mistakes = (
            (
                0.0,
                f"the second image differs by {sign * 5:g} in one number, and the gap is 0: look at all images, "
                f"and at absolute values",
            ),
            (5.0 / 24, "this is a mean; one wrong number among many must not be averaged away"),
            (25.0, "differences are squared: take absolute values"),
        )
        equal(gap, 5.0, "the second image differs by 5 in one number, which must be the gap", mistakes)


def check_along_tokens(equivariance_gap: Answer) -> None:
    """Tokens are shuffled, not their channels or the images."""
    tokens = torch.randn(3, 3, 3)
    gap = numbered(equivariance_gap(lambda x: x * torch.tensor([1.0, 10.0, 100.0]), tokens, ORDER))
    if gap > 1e-4:
        raise Wrong(
            "a layer that treats every token alike gets a gap: the channels were shuffled; index axis 1, [:, order]"
        )
    gap = numbered(equivariance_gap(lambda x: x * torch.tensor([1.0, 10.0, 100.0])[:, None, None], tokens, ORDER))
    if gap > 1e-4:
        raise Wrong(
            "a layer that treats every token alike gets a gap: whole images were shuffled; index axis 1, [:, order]"
        )


def check_invariance_example(invariance_gap: Answer) -> None:
    """The example's invariance gap is 2."""
    mistakes = (
        (3.0, "3 is the equivariance gap: here layer(x) stays as it is"),
        (1.0, "this is the mean of the differences, not the largest"),
    )
    equal(numbered(invariance_gap(running_sum, example(), ORDER)), 2.0, "the example does not come out", mistakes)


def check_pooling_is_invariant(invariance_gap: Answer) -> None:
    """Attention is not invariant; with a mean over tokens after it, it is."""
    layer, tokens, order = attention(), torch.randn(2, 6, 4), torch.tensor([1, 2, 3, 4, 5, 0])
    if numbered(invariance_gap(layer, tokens, order)) < 1e-3:
        raise Wrong(
            "plain attention comes out as invariant: its answers move with their tokens, so there must be a gap"
        )
    gap = numbered(invariance_gap(lambda x: layer(x).mean(dim=1), tokens, order))
    if gap > 1e-4:
        raise Wrong(f"the mean over all tokens has the gap {gap:.3g}, not 0: an output without tokens is not shuffled")


def example() -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1)


def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(dim=1)


def first_token_only(x: Tensor, sign: float) -> Tensor:
    """Lets one place speak and silences all others: the plainest layer in which places differ."""
    return sign * torch.cat([x[:, :1], torch.zeros_like(x[:, 1:])], dim=1)


def attention() -> Answer:
    layer = SelfAttention(MixerContext(dim=4, num_heads=2, grid=(2, 3))).requires_grad_(False)
    return lambda x: layer(x, None)


def with_positions() -> Answer:
    layer, table = attention(), SinCos(4)((2, 3))
    return lambda x: layer(x + table)
