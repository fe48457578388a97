"""What one check says about an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_WRITTEN = "not written yet"
    WAITING = "waiting"  # for an earlier check of the same function


@dataclass(frozen=True)
class Result:
    title: str
    state: State
    message: str = ""
    about: frozenset[str] = frozenset()  # the functions that were asked
    vague: bool = False  # the message says that something is wrong, but not what


def without_vague(results: Sequence[Result]) -> list[Result]:
    """The same, but vague messages are left out where another one knows what is wrong with the same function."""
    telling = frozenset[str]().union(*(one.about for one in results if one.message and not one.vague))
    return [replace(one, message="") if one.vague and one.about & telling else one for one in results]
