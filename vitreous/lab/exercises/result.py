"""What one check says about an answer."""

from __future__ import annotations

from dataclasses import dataclass
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
