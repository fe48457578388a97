"""Result of a single check of a learner's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_WRITTEN = "not written yet"
    WAITING = "waiting"  # an earlier check of the same function must pass first


@dataclass(frozen=True)
class Result:
    title: str
    state: State
    message: str = ""
    about: frozenset[str] = frozenset()  # names of the functions the check calls
    vague: bool = False  # the message reports a deviation without its cause


def without_vague(results: Sequence[Result]) -> list[Result]:
    """Drop vague messages about functions for which another check names the cause."""
    diagnosed = frozenset[str]().union(*(one.about for one in results if one.message and not one.vague))
    return [replace(one, message="") if one.vague and one.about & diagnosed else one for one in results]
