"""Checks of exercise 6."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitreous.lab.exercises.checking import (
    Answer,
    CheckFailed,
    is_close,
    require_close,
    require_equal,
    require_number,
    require_shape,
)
from vitreous.layers.attention import SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mlp import Mlp


def check_shape(block: Answer) -> None:
    """The shape is (b, n, d)."""
    require_shape(block(torch.randn(2, 5, 8), halve, halve, halve, halve), (2, 5, 8), "(b, n, d)")


def check_example(block: Answer) -> None:
    """The example of the task is reproduced."""
    found = block(torch.full((1, 1, 1), 2.0), halve, lambda x: 4 * x, halve, lambda x: x + 1)
    mistakes = (
        (5.5, "5.5 is Post-LN, norm(x + branch(x)): the norm belongs inside the branch"),
        (21.0, "the norms are not used: the input of each branch is norm(x)"),
        (7.0, "the first sum is missing: x + attention(…)"),
        (4.0, "the second sum is missing: x + mlp(…)"),
        (3.0, "both sums are missing: a branch is added to x"),
        (8.0, "the MLP reads the block's input: it must read x after attention has been added"),
        (6.0, "the stream itself was normalized (x = norm(x)): normalize only the input of a branch"),
        (12.0, "the MLP comes first: attention, then MLP"),
    )
    require_equal(require_number(found.reshape(())), 10.0, "the example is not reproduced", mistakes)


def check_each_branch_has_its_norm(block: Answer) -> None:
    """norm1 is applied before attention, norm2 before the MLP, each once."""
    calls: list[str] = []

    def part(name: str) -> Answer:
        def call(x: Tensor) -> Tensor:
            calls.append(name)
            return x

        return call

    block(torch.ones(1, 1, 1), *(part(name) for name in ("norm1", "attention", "norm2", "mlp")))
    if calls != ["norm1", "attention", "norm2", "mlp"]:
        raise CheckFailed(
            f"the parts were called in the order {', '.join(calls)}; it must be norm1, attention, norm2, mlp"
        )


def check_residual(block: Answer) -> None:
    """If both branches return 0, the stream is unchanged."""
    x = torch.randn(2, 5, 8)
    found = block(x, nn.LayerNorm(8), torch.zeros_like, nn.LayerNorm(8), torch.zeros_like)
    if is_close(found, torch.zeros_like(x)):
        raise CheckFailed("when both branches return 0, the block returns 0: the residual x + … is missing")
    normed = nn.LayerNorm(8)(x)
    mistakes = (
        (normed, "when both branches return 0, the block returns norm(x): the stream itself must not be normalized"),
    )
    require_close(found, x, "when both branches return 0, the block must return x", mistakes)


def check_gradient(block: Answer) -> None:
    """The gradient reaches the input unchanged through twelve blocks."""
    x = torch.randn(1, 3, 8)
    start = x.clone().requires_grad_()
    end = start
    for _ in range(12):
        end = block(end, nn.LayerNorm(8), torch.zeros_like, nn.LayerNorm(8), torch.zeros_like)
    if not end.requires_grad:
        raise CheckFailed("there is no gradient at all: the output does not depend on the input, or was detached")
    (gradient,) = torch.autograd.grad((end * x).sum(), start)
    require_close(gradient, x, "the gradient must be passed unchanged when the branches return 0")


def check_library(block: Answer) -> None:
    """The values equal the library's, with real parts."""
    reference = PreNormBlock(8, SelfAttention(MixerContext(dim=8, num_heads=2, grid=(1, 5))), Mlp(8, 32))
    for norm in (reference.norm1, reference.norm2):
        nn.init.normal_(norm.weight, mean=1.0)
    x = torch.randn(2, 5, 8)
    found = block(x, reference.norm1, lambda x: reference.mixer(x, None), reference.norm2, reference.mlp)
    require_close(found, reference(x, None), "with a real attention and a real MLP the values differ")


def halve(x: Tensor) -> Tensor:
    return x / 2
