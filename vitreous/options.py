"""Settings as frozen dataclasses that check their own values: a model's config, a stage's, a mixer's.

A misspelt option names the nearest one, a choice lists the choices, a rate lies in [0, 1), and any of them can be
written as JSON and read back. Without torch, so that every module may import it.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from vitreous.spec import Size, pair


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all settings; every instance has checked its fields against their types."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            value = checked(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)

    def override(self, **overrides: Any) -> Self:
        """A copy with some fields changed; an unknown name is an error that names the nearest field."""
        check_names(type(self), overrides)
        return replace(self, **overrides)

    @classmethod
    def given(cls, name: str, value: Any) -> Self:
        """Settings as they were given for the option ``name``: an instance, or the JSON of one."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            check_names(cls, value)
            return cls(**value)
        raise ValueError(f"{name} must be a {cls.__name__}, got {value!r}")

    def to_json(self) -> dict[str, Any]:
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}


def plain(value: Any) -> Any:
    if isinstance(value, Options):
        return value.to_json()
    return [plain(part) for part in value] if isinstance(value, tuple) else value


def check_names(kind: type[Options], given: Iterable[str]) -> None:
    names = [field.name for field in fields(kind)]
    for name in given:
        if name not in names:
            raise ValueError(f"{kind.__name__} has no option {name!r}{did_you_mean(name, names)}")


def checked(name: str, value: Any, hint: Any) -> Any:
    """A value as its type says: a number, a probability for a rate, a size, one of the choices, or a row of these."""
    if get_origin(hint) is Literal:
        return checked_choice(name, value, get_args(hint))
    if hint == Size:
        return pair(value, name)
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        return checked_row(name, value, get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, Options):
        return hint.given(name, value)
    if hint is bool and not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    if hint is int:
        return checked_int(name, value)
    if hint is float or (hint == (float | None) and value is not None):
        return checked_float(name, value)
    return value


def checked_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        words = [str(choice) for choice in choices]
        near = did_you_mean(str(value), words)
        near = near if "did you mean" in near else ""
        raise ValueError(f"{name} must be one of {', '.join(words)}; got {value!r}{near}")
    return value


def checked_row(name: str, value: Any, hint: Any) -> tuple[Any, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise ValueError(f"{name} must be several values in a row, got {value!r}")
    row = tuple(checked(f"each of {name}", part, hint) for part in value)
    if not row:
        raise ValueError(f"{name} must have at least one value")
    return row


def checked_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    value = operator.index(value)
    least = 0 if name.startswith("num_") else 1
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def checked_float(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if value < 0 or (name.endswith("_rate") and value >= 1):
        raise ValueError(f"{name} must {'lie in [0, 1)' if name.endswith('_rate') else 'not be negative'}, got {value}")
    return float(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if len(known) <= 30 else ""
