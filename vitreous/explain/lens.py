"""The logit lens: apply a model's head to the residual stream after each block.

    lens(i) = head(pool(norm(xᵢ)))        with xᵢ the residual stream after block i

The final norm, pooling and heads are the model's; all later blocks are replaced by the identity. This needs a residual
stream of constant shape up to the head, so only the blocks of the last stage can be decoded. The head was trained on
the last block alone, so early predictions may be poorer than the information in the stream. Introduced for language
models in nostalgebraist, "interpreting GPT: the logit lens", 2020.
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
from vitreous.models.base import Model, mean_logits


class BlockCall(NamedTuple):
    """Input and output of one call of a block: tokens (b, n, d) or a feature map (b, c, y, x)."""

    input: Tensor
    output: Tensor


@torch.no_grad()
def logit_lens(
    model: Model, images: Float[Tensor, "b c y x"], score: Callable[[Outputs], Tensor] = mean_logits
) -> dict[str, Float[Tensor, "b ..."]]:
    """Compute a model's logits, or another score, after each block of the last stage.

    The blocks run only once; their recorded outputs are replayed afterwards, so that each further block costs no more
    than stem and head. The mode of the model is not changed: call ``model.eval()`` first.

    Args:
        model: The original model, not a compiled one.
        images: A normalized batch.
        score: Any function of the model's outputs: a :data:`Score` (b,), or by default the class logits (b, k).

    Returns:
        The score by block name, such as ``"blocks.3"`` for the fourth block. That of the last block is the model's
        own, computed on all tokens.
    """
    if not isinstance(model, Model):
        raise ValueError(
            f"logit_lens needs a Vitreous model, got {type(model).__name__}; for a compiled model, pass the original"
        )
    blocks = list(model.blocks)
    calls = record_calls(model, blocks, images)
    found = {}
    for index in range(first_of_last_stream(calls), len(calls)):
        with patched_forward(blocks, replay_then_identity(calls[: index + 1])):
            found[f"blocks.{index}"] = score(outputs_of(model, images))
    return found


def record_calls(model: Model, blocks: Sequence[nn.Module], images: Tensor) -> list[BlockCall]:
    """Run one forward pass and record input and output of every block, in the order of the calls."""
    calls: list[BlockCall] = []

    def append_call(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        calls.append(BlockCall(args[0], output))

    hooks = [block.register_forward_hook(append_call) for block in dict.fromkeys(blocks)]
    try:
        outputs_of(model, images)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def first_of_last_stream(calls: Sequence[BlockCall]) -> int:
    """Index of the first block after which only shape-preserving blocks precede the final norm."""
    first = len(calls) - 1
    while first > 0 and same_stream(calls[first - 1], calls[first]):
        first -= 1
    return first


def same_stream(before: BlockCall, after: BlockCall) -> bool:
    """Whether a block's output is the next block's input, up to flattening, and the next block preserves the shape."""
    output, input = (as_tokens(x) if x.ndim == 4 else x for x in (before.output, after.input))
    return after.input.shape == after.output.shape and torch.equal(output, input)


def replay_then_identity(calls: Sequence[BlockCall]) -> Callable[..., Tensor]:
    """A forward for all blocks: return the recorded outputs in turn, then act as the identity."""
    recorded = iter([call.output for call in calls])
    return lambda x, *_args, **_options: next(recorded, x)


@contextmanager
def patched_forward(blocks: Sequence[nn.Module], forward: Callable[..., Tensor]) -> Iterator[None]:
    """Replace the forward of every block, and restore it on exit."""
    originals = {block: vars(block).get("forward") for block in blocks}
    try:
        for block in originals:
            block.forward = forward
        yield
    finally:
        for block, original in originals.items():
            vars(block).pop("forward", None)
            if original is not None:
                block.forward = original
