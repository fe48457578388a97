"""A mixer on the command line: its name, then options if any, as in ``--model.mixer performer num_features=128``."""

from __future__ import annotations

import json
from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from vitreous.layers.mixer import Mixer


def registry() -> ConstructorRegistry:
    """tyro's rules, with one for mixers."""
    rules = ConstructorRegistry()
    rules.primitive_rule(mixer_rule)
    return rules


def mixer_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Mixer] | None:
    if not (isinstance(info.type, type) and issubclass(info.type, Mixer)):
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME [OPTION=VALUE …]",
        instance_from_str=read_mixer,
        is_instance=lambda value: isinstance(value, Mixer),
        str_from_instance=write_mixer,
    )


def read_mixer(words: list[str]) -> Mixer:
    name, *settings = words
    options: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"an option of a mixer is written as in num_features=128, got {setting!r}")
        options[key] = read_value(value)
    return Mixer.given("mixer", {"mixer": name, **options})


def read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def write_mixer(mixer: Mixer) -> list[str]:
    options = mixer.to_json()
    name = options.pop("mixer")
    return [name, *(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in options.items())]
