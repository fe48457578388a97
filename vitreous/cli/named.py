"""What is chosen by name on the command line: mixers, optimizers, schedules.

--train.optimizer sgd lr=0.1 momentum=0.9        another one: its name, then options if any
--train.optimizer.lr 5e-4                        the same one, with an option changed
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
    """An option as it was typed, ``--train.optimizer.lr 5e-4`` or ``--train.optimizer.lr=5e-4``, with its values."""

    words: tuple[str, ...]

    @property
    def path(self) -> tuple[str, ...]:
        """Its dotted name, spelled as the fields are."""
        return tuple(self.words[0].removeprefix("--").partition("=")[0].replace("-", "_").split("."))

    @property
    def values(self) -> tuple[str, ...]:
        _, equals, value = self.words[0].partition("=")
        return (value, *self.words[1:]) if equals else self.words[1:]


def flags(words: list[str]) -> list[Flag]:
    """Words from the command line, gathered by the option that they belong to."""
    found: list[Flag] = []
    for word in words:
        if found and not word.startswith("--") and word != "-h":
            found[-1] = replace(found[-1], words=(*found[-1].words, word))
        else:
            found.append(Flag((word,)))
    return found


def registry() -> ConstructorRegistry:
    """tyro's rules, with one for what is chosen by name."""
    rules = ConstructorRegistry()
    rules.primitive_rule(rule)
    return rules


def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Named] | None:
    kind = info.type
    if not (isinstance(kind, type) and issubclass(kind, Named)):
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME [OPTION=VALUE …]",
        instance_from_str=lambda words: kind.given(kind.key, described(kind.key, words)),
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=write_named,
    )


def described(kind: str, words: Sequence[str]) -> dict[str, Any]:
    """The JSON of what was typed: ``{"optimizer": "sgd", "lr": 0.1}`` of ``sgd lr=0.1``."""
    options: dict[str, Any] = {kind: words[0]} if words else {}
    for setting in words[1:]:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"options of {words[0]} are written as in name=value, got {setting!r}")
        options[key.replace("-", "_")] = read_value(value)
    return options


def read_value(text: str) -> Any:
    for read in (json.loads, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"True": True, "False": False, "None": None}.get(text, text)


def write_named(chosen: Named) -> list[str]:
    options = chosen.to_json()
    name = options.pop(chosen.key)
    return [name, *(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in options.items())]


def gathered(words: list[str], settings: object) -> list[str]:
    """The words with every ``--train.optimizer.lr 5e-4`` as a part of ``--train.optimizer``, typed or as it stands."""
    chosen: dict[tuple[str, ...], list[str]] = {}
    changes: dict[tuple[str, ...], list[str]] = {}
    others: list[str] = []
    for flag in flags(words):
        if named(settings, flag.path) is not None:
            chosen[flag.path] = list(flag.values)
        elif named(settings, flag.path[:-1]) is not None:
            changes.setdefault(flag.path[:-1], []).append(as_setting(flag))
        else:
            others += flag.words
    for path, changed in changes.items():
        standing = named(settings, path)
        assert standing is not None
        chosen[path] = [*chosen.get(path, write_named(standing)), *changed]
    return [*others, *(word for path, values in chosen.items() for word in (f"--{'.'.join(path)}", *values))]


def as_setting(flag: Flag) -> str:
    """``lr=5e-4`` of ``--train.optimizer.lr 5e-4``, and a row of several values."""
    if not flag.values:
        raise ValueError(f"{flag.words[0]} needs a value")
    one = len(flag.values) == 1
    value = flag.values[0] if one else json.dumps([read_value(value) for value in flag.values])
    return f"{flag.path[-1]}={value}"


def named(settings: object, path: tuple[str, ...]) -> Named | None:
    """What stands at a dotted name, if it is something chosen by name."""
    for part in path:
        settings = getattr(settings, part, None)
    return settings if isinstance(settings, Named) else None
