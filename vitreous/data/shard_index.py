"""The index of a folder of tar shards: where each image lies and what it shows."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.folder import image_endings
from vitreous.data.labels import one_hot
from vitreous.files import CannotRead, open_file, write_atomically

INDEX = "index.json"
VERSION = 1
Target = int | list[float | None]  # a class's number, or a row; JSON knows no NaN, so null stands for the unknown
MOST_CLASSES = 10**6  # that tar files can number
MOST_BYTES = 2**62  # of a shard
MOST_TARGET = 1e6  # that a row of targets may hold; most hold zeros and ones


@dataclass(frozen=True)
class Shard:
    """A tar file of ``size`` bytes: where each image's own bytes begin and how many they are, and its target."""

    name: str
    size: int
    offsets: list[int]
    sizes: list[int]
    targets: list[Target]


FIELDS = {field.name for field in fields(Shard)}


@dataclass(frozen=True)
class Index:
    classes: tuple[str, ...]
    multi_label: bool  # whether a target is several labels rather than one class
    shards: Sequence[Shard]

    def targets(self) -> NDArray[Any]:
        """Numbers (n,) or rows (n, classes)."""
        every = [target for shard in self.shards for target in shard.targets]
        if all(isinstance(target, int) for target in every):
            return np.array(every, dtype=np.int64)
        rows = [one_hot([target], len(self.classes))[0] if isinstance(target, int) else target for target in every]
        return np.array(rows, dtype=np.float32)  # None becomes NaN

    def places(self) -> NDArray[np.int64]:
        """(n, 3): shard, offset, size."""
        parts = [
            np.stack([np.full(len(shard.offsets), number), shard.offsets, shard.sizes], axis=1)
            for number, shard in enumerate(self.shards)
        ]
        return np.concatenate([np.zeros((0, 3), dtype=np.int64), *parts]).astype(np.int64)


def write_index(folder: Path, index: Index) -> None:
    """Write the index that makes a folder of shards complete."""
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
        raise ValueError(f"{path} is no index of shards ({reason}); pack the shards again") from None


def checked_index(content: Any) -> Index:
    """The index that JSON describes, every value of the type and within the range that it must have."""
    need(isinstance(content, dict), "it holds no object")
    version, classes, shards = (content.get(name) for name in ("version", "classes", "shards"))
    need(type(version) is int, "it has no version")
    need(version <= VERSION, f"version {version}, this Vitreous reads up to {VERSION}; upgrade it")
    need(isinstance(classes, list) and types_of(classes) <= {str}, "its classes are no list of names")
    need(isinstance(shards, list), "it has no list of shards")
    need(type(content.get("multi_label")) is bool, "it does not say whether there are several labels per image")
    listed = [checked_shard(entry, len(classes)) for entry in shards]
    need(any(shard.targets for shard in listed), "it lists no images")
    return Index(tuple(classes), content["multi_label"], listed)


def checked_shard(entry: Any, num_classes: int) -> Shard:
    need(isinstance(entry, dict) and set(entry) == FIELDS, f"a shard has other fields than {', '.join(sorted(FIELDS))}")
    shard = Shard(**entry)
    need(isinstance(shard.name, str) and shard.name == os.path.basename(shard.name), "a shard's name is no file's name")
    name = shard.name[:100]
    lists = (shard.offsets, shard.sizes, shard.targets)
    need(all(isinstance(values, list) for values in lists), f"offsets, sizes or targets of {name} are no list")
    need(len({len(values) for values in lists}) == 1, f"offsets, sizes and targets of {name} are not equally many")
    need(types_of([shard.size, *shard.offsets, *shard.sizes]) <= {int}, f"a place in {name} is no whole number")
    ends = [offset + size for offset, size in zip(shard.offsets, shard.sizes, strict=True)]
    inside = min([0, *shard.offsets, *shard.sizes]) == 0 and max([0, *ends]) <= shard.size < MOST_BYTES
    need(inside, f"an image lies outside of {name}")
    numbers = [target for target in shard.targets if type(target) is int]
    rows = [target for target in shard.targets if type(target) is not int]
    wanted = f"neither a class number nor a row of {num_classes} numbers"
    need(all(is_row(row, num_classes) for row in rows), f"a target of {name} is {wanted}")
    need(all(abs(number) < MOST_CLASSES for number in numbers), f"a class number of {name} is out of range")
    return shard


def is_row(row: Any, num_classes: int) -> bool:
    """Whether it holds a number, or nothing, for each class."""
    if not isinstance(row, list) or len(row) != num_classes or not types_of(row) <= {int, float, type(None)}:
        return False
    return not any(value is not None and abs(value) > MOST_TARGET for value in row)


def types_of(values: Iterable[Any]) -> set[type]:
    return set(map(type, values))


def need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def import_tars(folder: Path, least_classes: int = 0) -> Index:
    """The index of tar files in the WebDataset convention; classes are called by their numbers."""
    shards = [import_tar(path) for path in sorted(folder.glob("*.tar"))]
    numbers = [target for shard in shards for target in shard.targets if isinstance(target, int)]
    if not numbers:
        raise ValueError(f"the tar files in {folder} hold no images with labels (key.jpg beside key.cls)")
    if wrong := [number for number in (min(numbers), max(numbers)) if not 0 <= number < MOST_CLASSES]:
        most = f"{MOST_CLASSES - 1:,}"
        raise ValueError(f"the tar files in {folder} hold the label {wrong[0]}; labels count from 0, up to {most}")
    count = max(least_classes, max(numbers) + 1)
    return Index(tuple(str(number) for number in range(count)), multi_label=False, shards=shards)


def import_tar(path: Path) -> Shard:
    images: dict[str, tarfile.TarInfo] = {}
    texts: dict[str, tuple[str, str]] = {}
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                key, ending = split_key(member.name)
                if member.isfile() and ending in image_endings():
                    images[key] = member
                elif member.isfile() and ending == ".cls":
                    texts[key] = member.name, read_text(tar, member)
    except CannotRead:
        raise
    except Exception as error:  # damaged headers raise whatever comes to hand
        raise ValueError(f"{path} is no plain tar file, or damaged ({error})") from None
    if alone := [key for key in images if key not in texts]:
        raise ValueError(f"{path}: {images[alone[0]].name} has no label; expected {alone[0]}.cls beside it")
    return Shard(
        path.name,
        path.stat().st_size,
        [member.offset_data for member in images.values()],
        [member.size for member in images.values()],
        [as_label(path, *texts[key]) for key in images],
    )


def split_key(name: str) -> tuple[str, str]:
    """``train/n01.x.jpg`` is the ``.x.jpg`` of ``train/n01``: keys end at their first dot. The last ending counts."""
    folder, _, file = name.rpartition("/")
    key, *endings = file.split(".")
    return f"{folder}/{key}" if folder else key, f".{endings[-1].lower()}" if endings else ""


def read_text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    return file.read(100).decode(errors="replace").strip() if file else ""


def as_label(path: Path, name: str, text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise ValueError(f"{path}: {name} holds {text!r}, not the number of a class")
    return int(text)
