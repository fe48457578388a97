"""Settings as frozen dataclasses with validation and JSON serialization, e.g. of models, mixers, optimizers and runs.

Errors suggest the nearest option for a misspelled name, list the choices, and state the bounds of a number. Components
with several implementations, such as mixers, are selected by name: :class:`Named`. Without torch, so that every module
may import it.
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
    """Bounds of a number, as in ``Annotated[float, Between(0, 1)]``; both are inclusive unless excluded."""

    minimum: float
    maximum: float = math.inf
    exclude_minimum: bool = False
    exclude_maximum: bool = False

    def check(self, name: str, value: float) -> None:
        low = value > self.minimum if self.exclude_minimum else value >= self.minimum
        high = value < self.maximum if self.exclude_maximum else value <= self.maximum
        if not (low and high):
            raise ValueError(f"{name} must {self}, got {value}")

    def __str__(self) -> str:
        if self.maximum < math.inf:
            ends = "(" if self.exclude_minimum else "[", ")" if self.exclude_maximum else "]"
            return f"lie in {ends[0]}{self.minimum:g}, {self.maximum:g}{ends[1]}"
        if self.minimum == 0:
            return "be positive" if self.exclude_minimum else "not be negative"
        return f"be {'greater than' if self.exclude_minimum else 'at least'} {self.minimum:g}"


Positive = Annotated[float, Between(0, exclude_minimum=True)]
Share = Annotated[float, Between(0, 1)]
Rate = Annotated[float, Between(0, 1, exclude_maximum=True)]
Count = Annotated[int, Between(0)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of settings: a frozen, keyword-only dataclass that validates its fields against their annotations.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Dropout(Options):
    ...     rate: Rate = 0.1
    """

    #: Removed options of earlier versions, with their replacement for the error message.
    moved: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *values: Any, **options: Any) -> Self:
        check_option_names(cls, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            value = checked(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)

    def override(self, **overrides: Any) -> Self:
        """Return a copy with some fields changed; an unknown name raises ``ValueError`` with the nearest field."""
        return replace(self, **overrides)

    @classmethod
    def given(cls, name: str, value: Any) -> Self:
        """Convert the value of the option ``name``, an instance or its JSON, to settings."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return cls(**value)
        raise ValueError(f"{name} must be a {cls.__name__}, got {value!r}")

    def to_json(self) -> dict[str, Any]:
        return {field.name: to_jsonable(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Named(Options, ABC):
    """Settings selected by name: ``"sgd"``, ``SGD(lr=0.1)`` and ``{"optimizer": "sgd", "lr": 0.1}`` are equivalent.

    A base class such as ``Optimizer`` defines ``key``, the field of the name in that JSON, and :meth:`table`, the
    registry; a subclass defines its ``name``.
    """

    key: ClassVar[str]
    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def table(cls) -> Mapping[str, Named]:
        """Return the registry: default settings by name."""

    @classmethod
    def given(cls, name: str, value: Any) -> Self:
        """Convert the value of the option ``name``, a name, an instance or its JSON, to settings."""
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


def to_jsonable(value: Any) -> Any:
    if isinstance(value, Options):
        return value.to_json()
    return [to_jsonable(part) for part in value] if isinstance(value, tuple) else value


def check_option_names(kind: type[Options], given: Iterable[str]) -> None:
    names = [field.name for field in fields(kind)]
    for name in given:
        if name in kind.moved:
            raise ValueError(f"{kind.__name__} no longer has an option {name!r}; use {kind.moved[name]}")
        if name not in names:
            raise ValueError(f"{kind.__name__} has no option {name!r}{did_you_mean(name, names)}")


def checked(name: str, value: Any, hint: Any, bounds: Between | None = None) -> Any:
    """Validate a value against its annotation and convert it: numbers, sizes, literals, options, or tuples of these."""
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
        return checked_tuple(name, value, parts)
    if isinstance(hint, type) and issubclass(hint, Options):
        return hint.given(name, value)
    if hint is bool and not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    if hint is int:
        return checked_int(name, value, bounds)
    if hint is float:
        return checked_float(name, value, bounds)
    return checked_str(name, value) if hint is str else value


def checked_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        words = [str(choice) for choice in choices]
        near = did_you_mean(str(value), words)
        near = near if "did you mean" in near else ""
        raise ValueError(f"{name} must be one of {', '.join(words)}; got {value!r}{near}")
    return value


def checked_union(name: str, value: Any, hints: tuple[Any, ...], bounds: Between | None) -> Any:
    """Validate an optional value; unions of several types are left to the consumer."""
    others = [hint for hint in hints if hint is not NoneType]
    if len(others) > 1 or (value is None and NoneType in hints):
        return value
    return checked(name, value, others[0], bounds)


def checked_tuple(name: str, value: Any, hints: tuple[Any, ...]) -> tuple[Any, ...]:
    """Validate a tuple: one value per annotation, or with ``...`` one or more of the same type."""
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise ValueError(f"{name} must be a sequence of values, got {value!r}")
    row = tuple(value)
    if hints[1:] == (...,):
        hints = hints[:1] * len(row)
        if not row:
            raise ValueError(f"{name} must have at least one value")
    if len(row) != len(hints):
        raise ValueError(f"{name} must be {len(hints)} values, got {value!r}")
    return tuple(checked(f"each of {name}", part, hint) for part, hint in zip(row, hints, strict=True))


def checked_str(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} must be a string, got {value!r}")
    return os.fspath(value)


def checked_texts(name: str, value: Any) -> list[str]:
    """Return one or several strings as a list."""
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} must be a string or a list of strings, got {value!r:.80}")
    return texts


def check_callable(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the value is None or callable."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function, got {value!r:.80}")


def checked_int(name: str, value: Any, bounds: Between | None = None) -> int:
    """Validate an integer. Without bounds it must be at least 1, or 0 if its name begins with ``num_``."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    value = operator.index(value)
    if abs(value) > LARGEST_INT:
        raise ValueError(f"{name} must be a whole number of at most 64 bits, got one of {value.bit_length()}")
    (bounds or Between(0 if name.startswith("num_") else 1)).check(name, value)
    return value


def checked_float(name: str, value: Any, bounds: Between | None = None) -> float:
    """Validate a number. Without bounds it must not be negative, and be below 1 if its name ends in ``_rate``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} must be a number, got {value!r}")
    (bounds or Between(0, 1 if name.endswith("_rate") else math.inf, exclude_maximum=True)).check(name, value)
    return float(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known word, or all of them if there are few."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if len(known) <= 30 else ""
