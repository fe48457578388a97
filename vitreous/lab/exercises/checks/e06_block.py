"""Checks of exercise 6."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitreous.lab.exercises.checking import Answer, Wrong, agree, alike, equal, numbered, shaped
from vitreous.layers.attention import SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mlp import Mlp


def check_shape(block: Answer) -> None:
    """The shape is (b, n, d)."""
    shaped(block(torch.randn(2, 5, 8), halve, halve, halve, halve), (2, 5, 8), "(b, n, d)")


def check_example(block: Answer) -> None:
    """The example of the task comes out."""
    found = block(torch.full((1, 1, 1), 2.0), halve, lambda x: 4 * x, halve, lambda x: x + 1)
    mistakes = (
        (5.5, "5.5 is Post-LN, norm(x + branch(x)): the norm belongs inside the branch"),
        (21.0, "the norms are not used: each branch reads norm(x)"),
        (7.0, "the first sum is missing: x + attention(…)"),
        (4.0, "the second sum is missing: x + mlp(…)"),
        (3.0, "both sums are missing: a branch is added to x"),
        (8.0, "the MLP reads the block's input: it must read x after attention was added"),
        (6.0, "the stream itself was normalized (x = norm(x)): only what a branch reads is"),
        (12.0, "the MLP comes first: attention, then MLP"),
    )
    equal(numbered(found.reshape(())), 10.0, "the example does not come out", mistakes)


def check_each_branch_has_its_norm(block: Answer) -> None:
    """norm1 goes before attention, norm2 before the MLP, each once."""
    calls: list[str] = []

    def part(name: str) -> Answer:
        def call(x: Tensor) -> Tensor:
            calls.append(name)
            return x

        return call

    block(torch.ones(1, 1, 1), *(part(name) for name in ("norm1", "attention", "norm2", "mlp")))
    if calls != ["norm1", "attention", "norm2", "mlp"]:
        raise Wrong(f"the parts were called in the order {', '.join(calls)}; it must be norm1, attention, norm2, mlp")


def check_residual(block: Answer) -> None:
    """With silent branches the stream goes through unchanged."""
    x = torch.randn(2, 5, 8)
    found = block(x, nn.LayerNorm(8), torch.zeros_like, nn.LayerNorm(8), torch.zeros_like)
    if alike(found, torch.zeros_like(x)):
        raise Wrong("when both branches give 0, the block gives 0: the residual x + … is missing")
    normed = nn.LayerNorm(8)(x)
    mistakes = (
        (normed, "when both branches give 0, the block gives norm(x): the stream itself must not be normalized"),
    )
    agree(found, x, "when both branches give 0, the block must give x", mistakes)


def check_gradient(block: Answer) -> None:
    """The gradient reaches the input unhindered, twelve blocks deep."""
    x = torch.randn(1, 3, 8)
    start = x.clone().requires_grad_()
    end = start
    for _ in range(12):
        end = block(end, nn.LayerNorm(8), torch.zeros_like, nn.LayerNorm(8), torch.zeros_like)
    if not end.requires_grad:
        raise Wrong("no gradient comes back at all: the input does not reach the output, or was detached on the way")
    (gradient,) = torch.autograd.grad((end * x).sum(), start)
    agree(gradient, x, "a gradient that enters at the end must arrive unchanged where the branches are silent")


def check_library(block: Answer) -> None:
    """The numbers are the library's, with real parts."""
    reference = PreNormBlock(8, SelfAttention(MixerContext(dim=8, num_heads=2, grid=(1, 5))), Mlp(8, 32))
    for norm in (reference.norm1, reference.norm2):
        nn.init.normal_(norm.weight, mean=1.0)
    x = torch.randn(2, 5, 8)
    found = block(x, reference.norm1, lambda x: reference.mixer(x, None), reference.norm2, reference.mlp)
    agree(found, reference(x, None), "with a real attention and a real MLP the numbers differ")


def halve(x: Tensor) -> Tensor:
    return x / 2
