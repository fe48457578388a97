"""Open a dataset by name or path; the format on disk is detected from its content.

To add a format, write a module with two functions, one that recognizes a path and one that opens it, and register both
in ``ON_DISK``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.base import provides_target
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
class SourceKind:
    """A data format on disk."""

    description: str
    recognizes: Callable[[Path], bool]
    open: Callable[[Path], Splits]


EMBEDDED: dict[str, Callable[[int, Size | None, type[Targets] | None], Splits]] = {
    "shapes": open_shapes,
    "digits": lambda seed, image_size, target: open_digits(),
}
ON_DISK = (
    SourceKind("CIFAR-10 or CIFAR-100 (cifar-10-batches-py, cifar-100-python)", is_cifar, open_cifar),
    SourceKind("a folder of tar shards", is_shards, open_shards),
    SourceKind("a CSV file", lambda path: path.suffix.lower() == ".csv" and path.is_file(), open_table),
    SourceKind("a folder with one folder per class, optionally below train and val", Path.is_dir, open_folder),
)
SUPPORTED = "data is one of: " + "; ".join([*map(repr, EMBEDDED), *(kind.description for kind in ON_DISK)])


def open_data(
    source: str | Path,
    *,
    target: type[Targets] | None = None,
    valid_share: float = 0.1,
    seed: int = 0,
    image_size: Size | None = None,
) -> Splits:
    """Open the training, validation and test splits of a data source.

    Args:
        source: ``"shapes"`` or ``"digits"``, or the path of a folder (class folders, CIFAR, tar shards) or CSV file.
            A folder named like an embedded dataset is opened as ``./shapes/``.
        target: Required type of targets, e.g. ``vt.Masks``; None accepts whatever the data provides.
        valid_share: Share of each class to hold out if there is no validation split; 0 holds out none.
        seed: Seed of the held-out split, and of the scenes of Shapes.
        image_size: Size of the generated Shapes images, 64×64 by default; other images keep their size.

    Returns:
        The splits, with notes for the user about files left out and images held out.

    Raises:
        ValueError: The source does not exist, cannot be read, has an unknown format, or lacks the required targets.

    >>> splits = vt.open_data("photos/", valid_share=0.2)
    """
    size = None if image_size is None else pair(image_size, "image_size")
    name, path = str(source), as_path(source)
    if name in EMBEDDED:
        return hold_out(require_target(EMBEDDED[name](seed, size, target), target, name), valid_share, seed)
    try:
        kind = next((kind for kind in ON_DISK if kind.recognizes(path)), None)
        splits = kind.open(path) if kind else None
    except (CannotRead, CannotWrite):
        raise
    except OSError as error:
        raise ValueError(f"cannot read {error.filename or path}: {error.strerror or error}") from None
    if splits is None:
        raise ValueError(unknown_source_message(name, path))
    return hold_out(require_target(splits, target, name), valid_share, seed, path if path.is_dir() else path.parent)


def as_path(source: str | Path) -> Path:
    """Return the source as a path with ``~`` expanded; refuse an empty one, which would be the working folder."""
    if not str(source).strip():
        raise ValueError(f"data is empty; {SUPPORTED}")
    return Path(os.path.expanduser(source))


def require_target(splits: Splits, target: type[Targets] | None, source: str) -> Splits:
    """Return the splits if they provide the required type of targets."""
    if target is not None and not provides_target(target, splits.train):
        has = splits.train.target.description
        raise ValueError(f"{source} has {has}, the task needs {target.description}; choose another task or other data")
    return splits


def unknown_source_message(name: str, path: Path) -> str:
    near = difflib.get_close_matches(name, EMBEDDED, n=1)
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    problem = f"cannot recognize the data format of {name}" if path.exists() else f"there is no {name!r}{guess}"
    return f"{problem}; {SUPPORTED}"
