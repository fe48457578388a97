"""Data from a word or a path: what lies there is recognized by its content.

A new kind of data is a file with two functions and a line in a table here: whether a path holds it, and its splits.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.base import can_learn
from vitreous.data.cifar import is_cifar, open_cifar
from vitreous.data.digits import open_digits
from vitreous.data.folder import open_folder
from vitreous.data.scenes import open_shapes
from vitreous.data.shards import is_shards, open_shards
from vitreous.data.splits import Splits, hold_out
from vitreous.data.table import open_table
from vitreous.files import CannotRead, CannotWrite
from vitreous.samples import Targets
from vitreous.spec import Size, pair

__all__ = ["EMBEDDED", "ON_DISK", "Splits", "open_data"]


@dataclass(frozen=True)
class Kind:
    """A kind of data on disk."""

    description: str
    recognizes: Callable[[Path], bool]
    opens: Callable[[Path], Splits]


EMBEDDED: dict[str, Callable[[int, Size | None, type[Targets] | None], Splits]] = {
    "shapes": open_shapes,
    "digits": lambda seed, image_size, target: open_digits(),
}
ON_DISK = (
    Kind("CIFAR-10 or CIFAR-100 (cifar-10-batches-py, cifar-100-python)", is_cifar, open_cifar),
    Kind("a folder of tar shards", is_shards, open_shards),
    Kind("a CSV file", lambda path: path.suffix.lower() == ".csv" and path.is_file(), open_table),
    Kind("a folder with a folder for each class, or with train and val that hold such", Path.is_dir, open_folder),
)
KINDS = "data is one of: " + "; ".join([*map(repr, EMBEDDED), *(kind.description for kind in ON_DISK)])


def open_data(
    source: str | Path,
    *,
    target: type[Targets] | None = None,
    valid_share: float = 0.1,
    seed: int = 0,
    image_size: Size | None = None,
) -> Splits:
    """Open training, validation and test images of ``source``: an embedded dataset's name, a folder or a CSV file.

    ``target`` is the kind of targets that is needed, e.g. ``samples.Masks``; None takes what the data has. Where there
    is no validation split, ``valid_share`` of each class is held out, by ``seed``. Only Shapes, which are drawn, ask
    for ``image_size``; other images come as they are. A folder that is called like an embedded dataset is opened as
    ``./shapes/``.
    """
    size = None if image_size is None else pair(image_size, "image_size")
    name, path = str(source), as_path(source)
    if name in EMBEDDED:
        return hold_out(checked(EMBEDDED[name](seed, size, target), target, name), valid_share, seed)
    try:
        kind = next((kind for kind in ON_DISK if kind.recognizes(path)), None)
        splits = kind.opens(path) if kind else None
    except (CannotRead, CannotWrite):
        raise
    except OSError as error:
        raise ValueError(f"cannot read {error.filename or path}: {error.strerror or error}") from None
    if splits is None:
        raise ValueError(unknown(name, path))
    return hold_out(checked(splits, target, name), valid_share, seed, path if path.is_dir() else path.parent)


def as_path(source: str | Path) -> Path:
    """The path that a source names; an empty one would be the working folder."""
    if not str(source).strip():
        raise ValueError(f"data is empty; {KINDS}")
    return Path(os.path.expanduser(source))


def checked(splits: Splits, target: type[Targets] | None, source: str) -> Splits:
    """The splits, if they have the kind of targets that is needed."""
    if target is not None and not can_learn(target, splits.train):
        has = splits.train.target.words
        raise ValueError(f"{source} has {has}, the task needs {target.words}; choose another task, or other data")
    return splits


def unknown(name: str, path: Path) -> str:
    near = difflib.get_close_matches(name, EMBEDDED, n=1)
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    problem = f"{name} is no data that is known here" if path.exists() else f"there is no {name!r}{guess}"
    return f"{problem}; {KINDS}"
