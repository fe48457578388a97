"""Command-line syntax of options chosen by name: mixers, optimizers, schedules.

--train.optimizer sgd lr=0.1 momentum=0.9        choose another one: its name, then its options
--train.optimizer.lr 5e-4                        change an option of the current one
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from vitreous.options import Named


@dataclass(frozen=True)
class Flag:
    """An option with its values, ``--train.optimizer.lr 5e-4`` or ``--train.optimizer.lr=5e-4``."""

    words: tuple[str, ...]

    @property
    def path(self) -> tuple[str, ...]:
        """The components of the dotted name, with underscores as in field names."""
        return tuple(self.words[0].removeprefix("--").partition("=")[0].replace("-", "_").split("."))

    @property
    def values(self) -> tuple[str, ...]:
        """The values, given after ``=`` or as separate words."""
        _, equals, value = self.words[0].partition("=")
        return (value, *self.words[1:]) if equals else self.words[1:]


def split_flags(words: list[str]) -> list[Flag]:
    """Group command-line words by option."""
    found: list[Flag] = []
    for word in words:
        if found and not word.startswith("--") and word != "-h":
            found[-1] = replace(found[-1], words=(*found[-1].words, word))
        else:
            found.append(Flag((word,)))
    return found


def registry() -> ConstructorRegistry:
    """Return tyro's constructor registry extended with a rule for ``Named`` options."""
    rules = ConstructorRegistry()
    rules.primitive_rule(named_rule)
    return rules


def named_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Named] | None:
    """Define how tyro parses and prints ``Named`` options."""
    kind = info.type
    if not (isinstance(kind, type) and issubclass(kind, Named)):
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME [OPTION=VALUE …]",
        instance_from_str=lambda words: kind.given(kind.key, parse_named(kind.key, words)),
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=format_named,
    )


def parse_named(kind: str, words: Sequence[str]) -> dict[str, Any]:
    """Parse words to JSON: ``sgd lr=0.1`` becomes ``{"optimizer": "sgd", "lr": 0.1}``."""
    options: dict[str, Any] = {kind: words[0]} if words else {}
    for setting in words[1:]:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"options of {words[0]} must be written as name=value, got {setting!r}")
        options[key.replace("-", "_")] = parse_value(value)
    return options


def parse_value(text: str) -> Any:
    """Parse JSON, a float or a Python constant; anything else stays text."""
    for parse in (json.loads, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return {"True": True, "False": False, "None": None}.get(text, text)


def format_named(chosen: Named) -> list[str]:
    """Format options as words: the name, then name=value for each option."""
    options = chosen.to_json()
    name = options.pop(chosen.key)
    return [name, *(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in options.items())]


def merge_named_options(words: list[str], settings: object) -> list[str]:
    """Merge every ``--train.optimizer.lr 5e-4`` into the value of ``--train.optimizer``, typed or current."""
    chosen: dict[tuple[str, ...], list[str]] = {}
    changes: dict[tuple[str, ...], list[str]] = {}
    others: list[str] = []
    for flag in split_flags(words):
        if find_named(settings, flag.path) is not None:
            chosen[flag.path] = list(flag.values)
        elif find_named(settings, flag.path[:-1]) is not None:
            changes.setdefault(flag.path[:-1], []).append(format_setting(flag))
        else:
            others += flag.words
    for path, changed in changes.items():
        current = find_named(settings, path)
        assert current is not None
        chosen[path] = [*chosen.get(path, format_named(current)), *changed]
    return [*others, *(word for path, values in chosen.items() for word in (f"--{'.'.join(path)}", *values))]


def format_setting(flag: Flag) -> str:
    """Format ``--train.optimizer.lr 5e-4`` as ``lr=5e-4``, and several values as a JSON list."""
    if not flag.values:
        raise ValueError(f"{flag.words[0]} needs a value")
    value = flag.values[0] if len(flag.values) == 1 else json.dumps([parse_value(value) for value in flag.values])
    return f"{flag.path[-1]}={value}"


def find_named(settings: object, path: tuple[str, ...]) -> Named | None:
    """Return the option at a dotted name if it is chosen by name, else None."""
    for part in path:
        settings = getattr(settings, part, None)
    return settings if isinstance(settings, Named) else None
