"""What the checks are written with: an error that teaches, and comparisons that recognize known mistakes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: A function, or a class, of the learner's.
Answer = Callable[..., Any]
#: What comes out when somebody makes a known mistake, and the message that names it.
Mistakes = Sequence[tuple[Tensor, str]]


class Wrong(Exception):
    """A message for the learner.

    ``final``: nothing else can be said about this answer before that is mended. ``vague``: it says that something is
    wrong but not what, so that it need not be read where another check knows more.
    """

    def __init__(self, message: str, *, final: bool = False, vague: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.vague = vague


def guarded(function: Answer) -> Answer:
    """The learner's function; it must leave its inputs alone, and its errors tell how it was called."""

    @functools.wraps(function)
    def call(*given: Any) -> Any:
        before = [one.clone() if isinstance(one, Tensor) else None for one in given]
        try:
            found = function(*given)
        except Exception as error:
            error.add_note(f"called as {function.__name__}({', '.join(map(described, given))})")
            raise
        for index, (one, old) in enumerate(zip(given, before, strict=True)):
            if old is not None and not torch.equal(one, old):
                raise Wrong(
                    f"the function changes its input number {index + 1} in place; write x = x + …, not x += …, "
                    f"because the caller may still need it",
                    final=True,
                )
        return found

    return call


def described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)}"
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
        return f"[{', '.join(map(described, value))}]"
    return repr(value) if isinstance(value, int | float | str | tuple) else type(value).__name__


def shaped(
    found: Any, shape: Sequence[int], meaning: str, mistakes: Mapping[tuple[int, ...], str] | None = None
) -> Tensor:
    """``found``, if it is a tensor of that shape; ``mistakes`` say what other shapes come from."""
    if found is None:
        raise Wrong("the function returns nothing: does it end with return?", final=True)
    if not isinstance(found, Tensor):
        raise Wrong(f"the answer is a {type(found).__name__}, not a tensor of shape {meaning}", final=True)
    if tuple(found.shape) != tuple(shape):
        why = (mistakes or {}).get(tuple(found.shape), "")
        raise Wrong(
            f"the shape is {tuple(found.shape)}, not {meaning} = {tuple(shape)}" + (f": {why}" if why else ""),
            final=True,
        )
    return found


def numbered(found: Any) -> float:
    """``found``, if it is one plain number."""
    if found is None:
        raise Wrong("the function returns nothing: does it end with return?", final=True)
    if isinstance(found, Tensor) and found.ndim == 0:
        found = found.item()
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Wrong(f"the answer is {described(found)}, not one number", final=True)
    return found


def alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.to(b.dtype), b, rtol=1e-3, atol=1e-4)


def agree(found: Tensor, right: Tensor, otherwise: str, mistakes: Mistakes = ()) -> None:
    """Pass if both are alike. A known mistake is named; any other is shown where it is largest."""
    if alike(found, right):
        return
    blame(found, mistakes)
    if found.isnan().any():
        raise Wrong(f"{otherwise}: there are NaNs in the answer")
    gap = (found - right).abs()
    place = [int(index) for index in torch.unravel_index(gap.argmax(), gap.shape)]
    there = f"at {place} stands {found[tuple(place)]:.4g}, not {right[tuple(place)]:.4g}"
    raise Wrong(f"{otherwise}: {there}", vague=True)


def blame(found: Tensor, mistakes: Mistakes) -> None:
    """Fail for the mistakes given, and only for them: others have checks of their own."""
    for wrong, message in mistakes:
        if alike(found, wrong):
            raise Wrong(message)


def equal(found: float, right: float, otherwise: str, mistakes: Sequence[tuple[float, str]] = ()) -> None:
    """The same for one number."""
    if close(found, right):
        return
    for wrong, message in mistakes:
        if close(found, wrong):
            raise Wrong(message)
    raise Wrong(f"{otherwise}: {found:.6g}, not {right:.6g}", vague=True)


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-4 + 1e-3 * abs(b)
