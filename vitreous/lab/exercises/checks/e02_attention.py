"""Checks of exercise 2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitreous.lab.exercises.checking import Answer, CheckFailed, require_close, require_shape
from vitreous.layers.attention import Attend


def check_shape(attention: Answer) -> None:
    """Output (n, e) and weights (n, m) are returned, in this order."""
    q, k, v = given(n=3, m=5, d=4, e=2)
    found = both(attention(q, k, v))
    require_shape(found[0], (3, 2), "(n, e) of the output", {(3, 5): "these are the weights; return the output first"})
    require_shape(
        found[1], (3, 5), "(n, m) of the weights", {(5, 3): "a row must belong to a query: q @ kᵀ, not k @ qᵀ"}
    )


def check_example(attention: Answer) -> None:
    """The example of the task is reproduced."""
    q = torch.tensor([[2.0, 0, 0, 0]])
    k = torch.eye(4)[:2]
    output, weights = attention(q, k, torch.tensor([[10.0], [20.0]]))
    mistakes = (
        (
            softmax([2.0, 0.0]),
            "the weights are 0.881 and 0.119, as without √d: divide q kᵀ by the square root of q's width",
        ),
        (softmax([0.5, 0.0]), "the weights are 0.622 and 0.378: the logits were divided by d, not by its root"),
    )
    require_close(weights, softmax([1.0, 0.0]), "the weights differ from the example", mistakes)
    require_close(output, torch.tensor([[12.689]]), "the weights are right, the output is not: compute weights @ v")


def check_rows_sum_to_one(attention: Answer) -> None:
    """The weights of each query sum to 1."""
    weights = attention(*given(n=3, m=5, d=4, e=2))[1]
    rows, columns = weights.sum(dim=-1), weights.sum(dim=-2)
    worst = rows[(rows - 1).abs().argmax()].item()
    if abs(worst - 1) > 1e-4:
        if torch.allclose(columns, torch.ones(5), atol=1e-4):
            raise CheckFailed(
                f"a row sums to {worst:.2f}, not 1: the softmax runs along the wrong axis (queries, not keys)"
            )
        raise CheckFailed(f"a row sums to {worst:.2f}, not 1: is the softmax taken last, after scaling?")
    if weights.min() < 0:
        raise CheckFailed("some weights are negative: softmax outputs never are; were they changed afterwards?")


def check_scale(attention: Answer) -> None:
    """The logits are divided by √d, for any number of tokens."""
    q, k, v = given(n=6, m=9, d=16, e=2)
    logits = q @ k.transpose(-2, -1)
    mistakes = (
        (
            logits.softmax(-1),
            "the logits are not divided by √d: without it they grow with the width, and the softmax saturates",
        ),
        ((logits / 16).softmax(-1), "the logits are divided by d, not by √d: attention becomes too uniform"),
        (
            (logits / 3).softmax(-1),
            "the logits are divided by the square root of the number of keys; d is the last dimension of q",
        ),
        (
            (logits / 6**0.5).softmax(-1),
            "the logits are divided by the square root of the number of queries; d is the last dimension of q",
        ),
        ((logits * 4).softmax(-1), "the logits are multiplied by √d; divide"),
        (logits.softmax(-1) / 4, "the softmax is taken before the division: divide first"),
    )
    require_close(attention(q, k, v)[1], Attend().weights(q, k), "the weights are not softmax(q kᵀ / √d)", mistakes)


def check_large_numbers(attention: Answer) -> None:
    """Large logits give a one-hot result, not NaN."""
    q, k = torch.tensor([[1000.0]]), torch.tensor([[1.0], [0.0]])
    weights = attention(q, k, torch.eye(2))[1]
    if weights.isnan().any():
        raise CheckFailed(
            "with a logit of 1000 the weights are NaN: exp overflows; subtract a row's maximum, or use softmax(-1)"
        )
    require_close(
        weights, torch.tensor([[1.0, 0.0]]), "with logits of 1000 and 0 the first key must get all the weight"
    )


def check_batch(attention: Answer) -> None:
    """Leading axes (images, heads) are kept separate."""
    q, k, v = (torch.randn(2, 3, tokens, 8) for tokens in (4, 5, 5))
    found = attention(q, k, v)
    require_shape(found[0], (2, 3, 4, 8), "(…, n, e) of the output")
    weights = require_shape(found[1], (2, 3, 4, 5), "(…, n, m) of the weights")
    require_close(
        weights, Attend().weights(q, k), "with leading axes the weights differ (the softmax runs along axis −1)"
    )


def check_output(attention: Answer) -> None:
    """The output equals that of the library's attention."""
    q, k, v = given(n=3, m=5, d=4, e=2)
    require_close(attention(q, k, v)[0], Attend()(q, k, v), "the output is not weights @ v")


def given(*, n: int, m: int, d: int, e: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(n, d), torch.randn(m, d), torch.randn(m, e)


def both(found: Any) -> tuple[Any, Any]:
    if not isinstance(found, tuple) or len(found) != 2:
        raise CheckFailed("two tensors are expected: return output, weights", final=True)
    return found


def softmax(logits: list[float]) -> Tensor:
    return torch.tensor([logits]).softmax(-1)
