"""The logit lens: what a model would answer if it stopped after each of its blocks.

    lens(i) = head(pool(norm(xᵢ)))        with xᵢ the stream after block i

Norm, pooling and heads are those of the model and read every stream as if all later blocks passed their input on. Only
what flows on unchanged to the end can be read so: the streams of the last stage. They are read by a head that was
trained on the last of them alone, so that an early answer may be poorer than what the stream holds. Known from language
models as nostalgebraist's "interpreting GPT: the logit lens", 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.explain.score import Outputs, outputs_of
from vitreous.layers.cells import as_tokens
from vitreous.models.base import Model, combine


class Call(NamedTuple):
    """What a block was given and what it gave: tokens (b, n, d) or a map (b, c, y, x)."""

    given: Tensor
    gave: Tensor


@torch.no_grad()
def logit_lens(
    model: Model, images: Float[Tensor, "b c y x"], score: Callable[[Outputs], Tensor] = combine
) -> dict[str, Float[Tensor, "b ..."]]:
    """Scores by block, ``"blocks.3"`` for the fourth; that of the last block is the model's own, of all tokens.

    ``score`` is any function of the outputs: a :data:`Score` (b,), or by default the logits of all classes (b, k).
    Blocks before the last stage are left out. The blocks compute once: afterwards those up to i repeat what they gave,
    so that each further answer costs no more than stem and head. The model runs as it is: put it into evaluation mode
    first.
    """
    if not isinstance(model, Model):
        raise ValueError(
            f"logit_lens needs a Vitreous model, got {type(model).__name__}; for a compiled model, pass the original"
        )
    blocks = list(model.blocks)
    calls = watch(model, blocks, images)
    answers = {}
    for index in range(first_readable(calls), len(calls)):
        with forward_replaced(blocks, repeat_then_pass_on(calls[: index + 1])):
            answers[f"blocks.{index}"] = score(outputs_of(model, images))
    return answers


def watch(model: Model, blocks: Sequence[nn.Module], images: Tensor) -> list[Call]:
    """One forward pass, and what every block did in it, in the order of their calls."""
    calls: list[Call] = []

    def keep(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        calls.append(Call(args[0], output))

    hooks = [block.register_forward_hook(keep) for block in dict.fromkeys(blocks)]
    try:
        outputs_of(model, images)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def first_readable(calls: Sequence[Call]) -> int:
    """The first block from whose output on nothing but blocks that keep their shape comes before the final norm."""
    first = len(calls) - 1
    while first > 0 and flows_on(calls[first - 1], calls[first]):
        first -= 1
    return first


def flows_on(before: Call, after: Call) -> bool:
    """What one block gives is what the next is given, at most laid out anew, and that one keeps its shape."""
    gave, given = (as_tokens(x) if x.ndim == 4 else x for x in (before.gave, after.given))
    return after.given.shape == after.gave.shape and torch.equal(gave, given)


def repeat_then_pass_on(calls: Sequence[Call]) -> Callable[..., Tensor]:
    """A forward for all blocks: the first to be called repeat what these calls gave, the later pass their input on."""
    recorded = iter([call.gave for call in calls])
    return lambda x, *_args, **_options: next(recorded, x)


@contextmanager
def forward_replaced(blocks: Sequence[nn.Module], forward: Callable[..., Tensor]) -> Iterator[None]:
    """Every block computes ``forward``; behind the with block, and whatever happens in it, its own again."""
    own = {block: vars(block).get("forward") for block in blocks}
    try:
        for block in own:
            block.forward = forward
        yield
    finally:
        for block, original in own.items():
            vars(block).pop("forward", None)
            if original is not None:
                block.forward = original
