"""Small damage to bytes, to JSON, and to words, drawn from a seeded random number generator."""

import copy
import json
from random import Random
from typing import Any

#: What a number, a name or a list is replaced by.
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 4096, 10**6, 2**31, -(2**31), 2**63, 2**80, 0.5, -0.5, 1e-9, 1e30,
    float("nan"), float("inf"), "", " ", "x", "0", "1e999", "none", "../x", "\0", "ünï→\u202e", "\udcff", "x" * 5000,
    [], {}, [[]], [None], [1, 2, 3], [-1], [0, 0], ["a", "a"], {"x": 1}, {"": {}},
]  # fmt: skip
NUMBERS = (0, 1, 2, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def damaged(content: bytes, rng: Random) -> bytes:
    """The content after one to four small changes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        content = rng.choice(DAMAGE)(bytearray(content), rng)
    return content


def flip_bits(content: bytearray, rng: Random) -> bytes:
    for _ in range(rng.choice((1, 1, 8, 100)) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def flip_header(content: bytearray, rng: Random) -> bytes:
    for _ in range(rng.randint(1, 4) if content else 0):
        content[rng.randrange(min(64, len(content)))] = rng.randrange(256)
    return bytes(content)


def truncate(content: bytearray, rng: Random) -> bytes:
    return bytes(content[: rng.choice((0, 1, 15, 16, 100, rng.randint(0, len(content)), len(content) - 1))])


def splice(content: bytearray, rng: Random) -> bytes:
    """A part of the content put over, or in between, another place of it."""
    start, place = rng.randint(0, len(content)), rng.randint(0, len(content))
    part = content[start : start + rng.choice((1, 4, 64, 512, 4096))]
    return bytes(content[:place] + part + content[place + rng.choice((0, len(part))) :])


def overwrite(content: bytearray, rng: Random) -> bytes:
    start, length = rng.randint(0, len(content)), rng.choice((1, 2, 4, 8, 512))
    return bytes(content[:start] + bytes([rng.choice((0, 255, 0x80, 0x7F))]) * length + content[start + length :])


def absurd_number(content: bytearray, rng: Random) -> bytes:
    """A very large or very small number among the first bytes, where sizes and offsets stand."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    start = rng.randint(0, min(200, len(content)))
    number = (rng.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, order)
    return bytes(content[:start] + number + content[start + width :])


DAMAGE = (flip_bits, flip_header, truncate, splice, overwrite, absurd_number)


def damaged_json(value: Any, rng: Random) -> bytes:
    """The text of JSON in which some values are odd, missing, called otherwise or nested too deeply."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        value = change_node(value, rng)
    text = json.dumps(value).encode()
    if rng.random() < 0.05:
        text = text.replace(b"1", b"[" * 100_000, 1)
    return damaged(text, rng) if rng.random() < 0.1 else text


def change_node(value: Any, rng: Random) -> Any:
    """The value with a change somewhere in it, at the top seldom."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or rng.random() < 0.1:
        return odd(value, rng)
    key = rng.choice(keys)
    what = rng.random()
    if what < 0.1:
        del value[key]
    elif what < 0.15 and isinstance(value, dict):
        value[rng.choice(["", "x", "__class__", "ünï", f"{key}s"])] = value.pop(key)
    else:
        value[key] = change_node(value[key], rng)
    return value


def odd(value: Any, rng: Random) -> Any:
    """Something else in the place of a value, often of the same type."""
    if isinstance(value, int | float) and rng.random() < 0.5:
        return rng.choice([number for number in ODD if isinstance(number, int | float)])
    if isinstance(value, list) and value and rng.random() < 0.5:
        return rng.choice([value * 2, value[:-1], value[::-1], [value], [*value, rng.choice(ODD)]])
    return copy.deepcopy(rng.choice(ODD))
