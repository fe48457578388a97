"""The index of a folder of tar shards: where each picture lies and what it shows."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import one_hot
from vitreous.data.folder import picture_endings
from vitreous.files import write_atomically

INDEX = "index.json"
VERSION = 1
Target = int | list[float | None]  # a class's number, or a row; JSON knows no NaN, so null stands for the unknown


@dataclass(frozen=True)
class Shard:
    """A tar file of ``size`` bytes: where each picture's own bytes begin and how many they are, and its target."""

    name: str
    size: int
    offsets: list[int]
    sizes: list[int]
    targets: list[Target]


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
        content = json.loads(path.read_bytes())
        version = int(content.pop("version"))
        if version > VERSION:
            raise ValueError(f"version {version}, this Vitreous reads up to {VERSION}; upgrade it")
        index = Index(
            tuple(map(str, content["classes"])),
            bool(content["multi_label"]),
            [Shard(**shard) for shard in content["shards"]],
        )
        lengths = {(len(shard.offsets), len(shard.sizes), len(shard.targets)) for shard in index.shards}
        if any(len(set(of_one)) > 1 for of_one in lengths):
            raise ValueError("offsets, sizes and targets are not equally many")
        return index
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no index of shards ({error}); pack the shards again") from None


def import_tars(folder: Path, least_classes: int = 0) -> Index:
    """The index of tar files in the WebDataset convention; classes are called by their numbers."""
    shards = [import_tar(path) for path in sorted(folder.glob("*.tar"))]
    numbers = [target for shard in shards for target in shard.targets if isinstance(target, int)]
    if not numbers:
        raise ValueError(f"the tar files in {folder} hold no pictures with labels (key.jpg beside key.cls)")
    if min(numbers) < 0:
        raise ValueError(f"the tar files in {folder} hold the label {min(numbers)}; labels count from 0")
    count = max(least_classes, max(numbers) + 1)
    return Index(tuple(str(number) for number in range(count)), multi_label=False, shards=shards)


def import_tar(path: Path) -> Shard:
    pictures: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                key, ending = split_key(member.name)
                if member.isfile() and ending in picture_endings():
                    pictures[key] = member
                elif member.isfile() and ending == ".cls":
                    labels[key] = read_label(tar, member)
    except (tarfile.TarError, OSError) as error:
        raise ValueError(f"{path} is no plain tar file, or damaged ({error})") from None
    if alone := [key for key in pictures if key not in labels]:
        raise ValueError(f"{path}: {pictures[alone[0]].name} has no label; expected {alone[0]}.cls beside it")
    return Shard(
        path.name,
        path.stat().st_size,
        [member.offset_data for member in pictures.values()],
        [member.size for member in pictures.values()],
        [labels[key] for key in pictures],
    )


def split_key(name: str) -> tuple[str, str]:
    """``train/n01.x.jpg`` is the ``.x.jpg`` of ``train/n01``: keys end at their first dot. The last ending counts."""
    folder, _, file = name.rpartition("/")
    key, *endings = file.split(".")
    return f"{folder}/{key}" if folder else key, f".{endings[-1].lower()}" if endings else ""


def read_label(tar: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    file = tar.extractfile(member)
    text = file.read(100).decode(errors="replace").strip() if file else ""
    if not text.lstrip("-").isdecimal():
        raise ValueError(f"{tar.name!s}: {member.name} holds {text!r}, not the number of a class")
    return int(text)
