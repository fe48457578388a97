"""The index of a folder of tar shards: the byte range and the target of each image."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.folder import image_suffixes
from vitreous.data.labels import one_hot
from vitreous.files import CannotRead, open_file, write_atomically

INDEX = "index.json"
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can hold half a character, which nothing can write or draw
VERSION = 1
Target = int | list[float | None]  # a class index or a class vector; null is an unknown label, since JSON has no NaN
MAX_CLASSES = 10**6
MAX_BYTES = 2**62  # of a shard
MAX_TARGET = 1e6  # absolute value in a class vector; most hold zeros and ones


@dataclass(frozen=True)
class Shard:
    """A tar file of ``size`` bytes, with byte offset, byte size and target of each image."""

    name: str
    size: int
    offsets: list[int]
    sizes: list[int]
    targets: list[Target]


FIELDS = {field.name for field in fields(Shard)}


@dataclass(frozen=True)
class Index:
    """The index of a folder of shards."""

    classes: tuple[str, ...]
    multi_label: bool
    shards: Sequence[Shard]

    def targets(self) -> NDArray[Any]:
        """Return class indices (n,), or class vectors (n, classes) with NaN for unknown labels."""
        every = [target for shard in self.shards for target in shard.targets]
        if all(isinstance(target, int) for target in every):
            return np.array(every, dtype=np.int64)
        rows = [one_hot([target], len(self.classes))[0] if isinstance(target, int) else target for target in every]
        return np.array(rows, dtype=np.float32)  # converts None to NaN

    def spans(self) -> NDArray[np.int64]:
        """Return (n, 3): shard number, offset and size of each image."""
        parts = [
            np.stack([np.full(len(shard.offsets), number), shard.offsets, shard.sizes], axis=1)
            for number, shard in enumerate(self.shards)
        ]
        return np.concatenate([np.zeros((0, 3), dtype=np.int64), *parts]).astype(np.int64)


def write_index(folder: Path, index: Index) -> None:
    """Write ``index.json``, which marks a folder of shards as complete."""
    content = json.dumps({"version": VERSION, **asdict(index)}, ensure_ascii=False, separators=(",", ":"))
    write_atomically(folder / INDEX, content.encode())


def read_index(folder: Path) -> Index:
    path = folder / INDEX
    try:
        with open_file(path) as file:
            content = json.load(file)
        return checked_index(content)
    except CannotRead:
        raise
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path} is not a valid shard index ({reason}); pack the shards again") from None


def checked_index(content: Any) -> Index:
    """Validate types and ranges of a parsed index."""
    require(isinstance(content, dict), "it is not an object")
    version, classes, shards = (content.get(name) for name in ("version", "classes", "shards"))
    require(type(version) is int, "it has no version")
    require(version <= VERSION, f"it has version {version}, this Vitreous reads up to {VERSION}: upgrade Vitreous")
    require(isinstance(classes, list) and types_of(classes) <= {str}, "its classes are not a list of names")
    require(not any(map(SURROGATE.search, classes)), "a class name is not valid Unicode")
    require(isinstance(shards, list), "it has no list of shards")
    require(type(content.get("multi_label")) is bool, "its multi_label is not a boolean")
    listed = [checked_shard(entry, len(classes)) for entry in shards]
    require(any(shard.targets for shard in listed), "it lists no images")
    return Index(tuple(classes), content["multi_label"], listed)


def checked_shard(entry: Any, num_classes: int) -> Shard:
    require(
        isinstance(entry, dict) and set(entry) == FIELDS, f"a shard has other fields than {', '.join(sorted(FIELDS))}"
    )
    shard = Shard(**entry)
    require(
        isinstance(shard.name, str) and shard.name == os.path.basename(shard.name), "a shard's name is no file's name"
    )
    name = shard.name[:100]
    lists = (shard.offsets, shard.sizes, shard.targets)
    require(all(isinstance(values, list) for values in lists), f"offsets, sizes and targets of {name} must be lists")
    require(len({len(values) for values in lists}) == 1, f"offsets, sizes and targets of {name} differ in length")
    require(
        types_of([shard.size, *shard.offsets, *shard.sizes]) <= {int}, f"an offset or size in {name} is not an integer"
    )
    ends = [offset + size for offset, size in zip(shard.offsets, shard.sizes, strict=True)]
    inside = min([0, *shard.offsets, *shard.sizes]) == 0 and max([0, *ends]) <= shard.size < MAX_BYTES
    require(inside, f"the byte range of an image exceeds {name}")
    numbers = [target for target in shard.targets if type(target) is int]
    rows = [target for target in shard.targets if type(target) is not int]
    wanted = f"neither a class index nor a vector of {num_classes} numbers"
    require(all(is_row(row, num_classes) for row in rows), f"a target of {name} is {wanted}")
    require(all(abs(number) < MAX_CLASSES for number in numbers), f"a class index of {name} is out of range")
    return shard


def is_row(row: Any, num_classes: int) -> bool:
    """Return whether a target is a list with a number or None for each class."""
    if not isinstance(row, list) or len(row) != num_classes or not types_of(row) <= {int, float, type(None)}:
        return False
    return not any(value is not None and abs(value) > MAX_TARGET for value in row)


def types_of(values: Iterable[Any]) -> set[type]:
    return set(map(type, values))


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def import_tars(folder: Path, least_classes: int = 0) -> Index:
    """Index tar files in the WebDataset convention; classes are named by their index."""
    shards = [import_tar(path) for path in sorted(folder.glob("*.tar"))]
    numbers = [target for shard in shards for target in shard.targets if isinstance(target, int)]
    if not numbers:
        raise ValueError(f"the tar files in {folder} hold no labeled images (key.jpg with key.cls)")
    if wrong := [number for number in (min(numbers), max(numbers)) if not 0 <= number < MAX_CLASSES]:
        most = f"{MAX_CLASSES - 1:,}"
        raise ValueError(f"the tar files in {folder} hold the label {wrong[0]}; labels must be from 0 to {most}")
    count = max(least_classes, max(numbers) + 1)
    return Index(tuple(str(number) for number in range(count)), multi_label=False, shards=shards)


def import_tar(path: Path) -> Shard:
    images: dict[str, tarfile.TarInfo] = {}
    texts: dict[str, tuple[str, str]] = {}
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                key, ending = split_key(member.name)
                if member.isfile() and ending in image_suffixes():
                    images[key] = member
                elif member.isfile() and ending == ".cls":
                    texts[key] = member.name, read_text(tar, member)
    except CannotRead:
        raise
    except Exception as error:  # damaged headers may raise any exception
        raise ValueError(f"{path} is not an uncompressed tar file, or is damaged ({error})") from None
    if alone := [key for key in images if key not in texts]:
        raise ValueError(f"{path}: {images[alone[0]].name} has no label; expected a member {alone[0]}.cls")
    return Shard(
        path.name,
        path.stat().st_size,
        [member.offset_data for member in images.values()],
        [member.size for member in images.values()],
        [parse_label(path, *texts[key]) for key in images],
    )


def split_key(name: str) -> tuple[str, str]:
    """Split a member name into key and last suffix; a key ends at its first dot, as in ``train/n01`` + ``.x.jpg``."""
    folder, _, file = name.rpartition("/")
    key, *endings = file.split(".")
    return f"{folder}/{key}" if folder else key, f".{endings[-1].lower()}" if endings else ""


def read_text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    return file.read(100).decode(errors="replace").strip() if file else ""


def parse_label(path: Path, name: str, text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise ValueError(f"{path}: {name} holds {text!r}, not a class index")
    return int(text)
