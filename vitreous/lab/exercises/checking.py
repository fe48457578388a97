"""Assertions for the checks, with messages that recognize known mistakes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: A function or class written by the learner.
Answer = Callable[..., Any]
#: Pairs of the result of a known mistake and the message that explains it.
KnownMistakes = Sequence[tuple[Tensor, str]]


class CheckFailed(Exception):
    """A failed check, with a message for the learner.

    Args:
        message: What is wrong and what to do about it.
        final: The checks that follow cannot be run until this is fixed.
        vague: The message reports a deviation without its cause, and is hidden where another check knows the cause.
    """

    def __init__(self, message: str, *, final: bool = False, vague: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.vague = vague


def wrap_answer(function: Answer) -> Answer:
    """Wrap the learner's function: reject in-place changes of its inputs, and add the call to its errors."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        before = [one.clone() if isinstance(one, Tensor) else None for one in arguments]
        try:
            result = function(*arguments)
        except Exception as error:
            error.add_note(f"called as {function.__name__}({', '.join(map(describe, arguments))})")
            raise
        for index, (one, old) in enumerate(zip(arguments, before, strict=True)):
            if old is not None and not torch.equal(one, old):
                raise CheckFailed(
                    f"the function changes its input number {index + 1} in place; write x = x + …, not x += …, "
                    f"because the caller may still need it",
                    final=True,
                )
        return result

    return call


def describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)}"
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
        return f"[{', '.join(map(describe, value))}]"
    return repr(value) if isinstance(value, int | float | str | tuple) else type(value).__name__


def require_shape(
    result: Any, shape: Sequence[int], meaning: str, mistakes: Mapping[tuple[int, ...], str] | None = None
) -> Tensor:
    """Return ``result`` if it is a tensor of that shape; ``mistakes`` explain other shapes."""
    if result is None:
        raise CheckFailed("the function returns None: does it end with return?", final=True)
    if not isinstance(result, Tensor):
        raise CheckFailed(f"the answer is a {type(result).__name__}, not a tensor of shape {meaning}", final=True)
    if tuple(result.shape) != tuple(shape):
        why = (mistakes or {}).get(tuple(result.shape), "")
        raise CheckFailed(
            f"the shape is {tuple(result.shape)}, not {meaning} = {tuple(shape)}" + (f": {why}" if why else ""),
            final=True,
        )
    return result


def require_number(result: Any) -> float:
    """Return ``result`` as a Python number."""
    if result is None:
        raise CheckFailed("the function returns None: does it end with return?", final=True)
    if isinstance(result, Tensor) and result.ndim == 0:
        result = result.item()
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise CheckFailed(f"the answer is {describe(result)}, not one number", final=True)
    return result


def is_close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.to(b.dtype), b, rtol=1e-3, atol=1e-4)


def require_close(result: Tensor, right: Tensor, message: str, mistakes: KnownMistakes = ()) -> None:
    """Pass if both tensors are close; otherwise name a known mistake, or show the largest deviation."""
    if is_close(result, right):
        return
    reject_mistakes(result, mistakes)
    if result.isnan().any():
        raise CheckFailed(f"{message}: the answer contains NaN")
    gap = (result - right).abs()
    index = [int(axis) for axis in torch.unravel_index(gap.argmax(), gap.shape)]
    deviation = f"at index {index} it is {result[tuple(index)]:.4g}, not {right[tuple(index)]:.4g}"
    raise CheckFailed(f"{message}: {deviation}", vague=True)


def reject_mistakes(result: Tensor, mistakes: KnownMistakes) -> None:
    """Fail for the given mistakes only: other deviations have their own checks."""
    for wrong, explanation in mistakes:
        if is_close(result, wrong):
            raise CheckFailed(explanation)


def require_equal(result: float, right: float, message: str, mistakes: Sequence[tuple[float, str]] = ()) -> None:
    """Pass if both numbers are close; otherwise name a known mistake, or show both."""
    if numbers_close(result, right):
        return
    for wrong, explanation in mistakes:
        if numbers_close(result, wrong):
            raise CheckFailed(explanation)
    raise CheckFailed(f"{message}: {result:.6g}, not {right:.6g}", vague=True)


def numbers_close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-4 + 1e-3 * abs(b)
