"""Settings as frozen dataclasses that check their own values: a model's, a mixer's, an optimizer's, a run's.

A misspelled option names the nearest one, a choice lists the choices, a number keeps its bounds, and any of them can be
written as JSON and read back. What exists in several kinds, such as mixers, is chosen by name: :class:`Named`. Without
torch, so that every module may import it.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from vitreous.spec import Size, pair

LARGEST_INT = 2**63 - 1


@dataclass(frozen=True)
class Between:
    """Bounds of a number, as in ``Annotated[float, Between(0, 1)]``; both belong to it unless left out."""

    least: float
    most: float = math.inf
    without_least: bool = False
    without_most: bool = False

    def check(self, name: str, value: float) -> None:
        low = value > self.least if self.without_least else value >= self.least
        high = value < self.most if self.without_most else value <= self.most
        if not (low and high):
            raise ValueError(f"{name} must {self}, got {value}")

    def __str__(self) -> str:
        if self.most < math.inf:
            ends = "(" if self.without_least else "[", ")" if self.without_most else "]"
            return f"lie in {ends[0]}{self.least:g}, {self.most:g}{ends[1]}"
        if self.least == 0:
            return "be positive" if self.without_least else "not be negative"
        return f"be {'greater than' if self.without_least else 'at least'} {self.least:g}"


Positive = Annotated[float, Between(0, without_least=True)]
Share = Annotated[float, Between(0, 1)]
Rate = Annotated[float, Between(0, 1, without_most=True)]
Count = Annotated[int, Between(0)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all settings; every instance has checked its fields against their types."""

    #: Options of earlier versions, with what is written today.
    moved: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *values: Any, **options: Any) -> Self:
        check_names(cls, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            value = checked(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)

    def override(self, **overrides: Any) -> Self:
        """A copy with some fields changed; an unknown name is an error that names the nearest field."""
        return replace(self, **overrides)

    @classmethod
    def given(cls, name: str, value: Any) -> Self:
        """Settings as they were given for the option ``name``: an instance, or the JSON of one."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return cls(**value)
        raise ValueError(f"{name} must be a {cls.__name__}, got {value!r}")

    def to_json(self) -> dict[str, Any]:
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Named(Options, ABC):
    """Settings chosen by name: ``"sgd"``, ``SGD(lr=0.1)`` and ``{"optimizer": "sgd", "lr": 0.1}`` are equivalent.

    A base such as ``Optimizer`` has a ``key`` in that JSON, and the :meth:`table` of names.
    """

    key: ClassVar[str]
    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def table(cls) -> Mapping[str, Named]:
        """Every one by its name, with its defaults."""

    @classmethod
    def given(cls, name: str, value: Any) -> Self:
        """Settings by name, as an instance, or as their JSON."""
        if isinstance(value, cls):
            return value
        known = cls.table()
        options: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {cls.key: value}
        chosen = options.pop(cls.key, None)
        if not isinstance(chosen, str) or chosen not in known:
            article = "an" if cls.key[0] in "aeiou" else "a"
            near = did_you_mean(chosen, known) if isinstance(chosen, str) else f"; known: {', '.join(sorted(known))}"
            raise ValueError(f"{name} must be {article} {cls.key}'s name or options, got {chosen!r}{near}")
        return cls.given(name, known[chosen].override(**options))

    def to_json(self) -> dict[str, Any]:
        return {self.key: self.name, **super().to_json()}


def plain(value: Any) -> Any:
    if isinstance(value, Options):
        return value.to_json()
    return [plain(part) for part in value] if isinstance(value, tuple) else value


def check_names(kind: type[Options], given: Iterable[str]) -> None:
    names = [field.name for field in fields(kind)]
    for name in given:
        if name in kind.moved:
            raise ValueError(f"{kind.__name__} has no option {name!r} any more; write {kind.moved[name]}")
        if name not in names:
            raise ValueError(f"{kind.__name__} has no option {name!r}{did_you_mean(name, names)}")


def checked(name: str, value: Any, hint: Any, bounds: Between | None = None) -> Any:
    """A value as its type says: a number in its bounds, a size, one of the choices, options, or a row of these."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = next((note for note in parts[1:] if isinstance(note, Between)), None)
        return checked(name, value, parts[0], found)
    if origin is Literal:
        return checked_choice(name, value, parts)
    if origin in (Union, UnionType):
        return checked_union(name, value, parts, bounds)
    if hint == Size:
        return pair(value, name)
    if origin is tuple:
        return checked_row(name, value, parts)
    if isinstance(hint, type) and issubclass(hint, Options):
        return hint.given(name, value)
    if hint is bool and not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    if hint is int:
        return checked_int(name, value, bounds)
    if hint is float:
        return checked_float(name, value, bounds)
    return checked_text(name, value) if hint is str else value


def checked_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        words = [str(choice) for choice in choices]
        near = did_you_mean(str(value), words)
        near = near if "did you mean" in near else ""
        raise ValueError(f"{name} must be one of {', '.join(words)}; got {value!r}{near}")
    return value


def checked_union(name: str, value: Any, hints: tuple[Any, ...], bounds: Between | None) -> Any:
    """None where it may be, else a value of the one type beside it; several types are left to whoever takes them."""
    others = [hint for hint in hints if hint is not NoneType]
    if len(others) > 1 or (value is None and NoneType in hints):
        return value
    return checked(name, value, others[0], bounds)


def checked_row(name: str, value: Any, hints: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values in a row: as many as there are types, or with ``...`` one or more of one type."""
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise ValueError(f"{name} must be several values in a row, got {value!r}")
    row = tuple(value)
    if hints[1:] == (...,):
        hints = hints[:1] * len(row)
        if not row:
            raise ValueError(f"{name} must have at least one value")
    if len(row) != len(hints):
        raise ValueError(f"{name} must be {len(hints)} values, got {value!r}")
    return tuple(checked(f"each of {name}", part, hint) for part, hint in zip(row, hints, strict=True))


def checked_text(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} must be text, got {value!r}")
    return os.fspath(value)


def checked_texts(name: str, value: Any) -> list[str]:
    """One text or several, as a list."""
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} must be text, or several in a list; got {value!r:.80}")
    return texts


def check_callable(name: str, value: Any) -> None:
    """Refuse what is neither left out nor a function."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function, got {value!r:.80}")


def checked_int(name: str, value: Any, bounds: Between | None = None) -> int:
    """A whole number: at least 1, or 0 for a number of things, where no bounds are given."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    value = operator.index(value)
    if abs(value) > LARGEST_INT:
        raise ValueError(f"{name} must be a whole number of at most 64 bits, got one of {value.bit_length()}")
    (bounds or Between(0 if name.startswith("num_") else 1)).check(name, value)
    return value


def checked_float(name: str, value: Any, bounds: Between | None = None) -> float:
    """A number: not negative, and below 1 for a rate, where no bounds are given."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} must be a number, got {value!r}")
    (bounds or Between(0, 1 if name.endswith("_rate") else math.inf, without_most=True)).check(name, value)
    return float(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if len(known) <= 30 else ""
