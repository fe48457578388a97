"""Sets larger than memory: images in plain tar files, found by an index of byte offsets.

A folder holds ``00000.tar``, ``00001.tar`` … and ``index.json``, or ``train``, ``val`` and ``test`` with these. As the
index says where each image lies, any order is possible and none depends on what was read before. Tar files in the
WebDataset convention (``key.jpg`` beside ``key.cls``) are indexed where they lie.
"""

from __future__ import annotations

import copy
import io
import os
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.base import Indices
from vitreous.data.encoded import Encoded
from vitreous.data.image_files import BadImage, decoded
from vitreous.data.shard_index import INDEX, Index, import_tars, read_index, write_index
from vitreous.data.splits import Splits, need_same_classes, need_two_classes, split_folders, visible_folders
from vitreous.files import CannotRead, open_file
from vitreous.samples import Classes, MultiLabels

WINDOW = 4  # shards that are shuffled together: reading stays within them
KEPT_OPEN = 64  # shards; systems allow a process some hundred open files


class Shards(Encoded):
    """Images inside of tar files, read at their offsets by any number of threads and processes."""

    def __init__(self, folder: Path, index: Index | None = None) -> None:
        index = index or read_index(folder)
        super().__init__(index.targets(), index.classes, target=MultiLabels if index.multi_label else Classes)
        self.files = [str(folder / shard.name) for shard in index.shards]
        self.place = index.places()  # (n, 3): shard, offset, size
        self.opened = lru_cache(KEPT_OPEN)(OpenFile)
        check_sizes(self.files, index)

    def content(self, index: int) -> bytes:
        shard, offset, size = self.place[index].tolist()
        try:
            return self.opened(self.files[shard]).read(size, offset)
        except CannotRead as error:
            raise BadImage(str(error), error.strerror) from None

    def image(self, index: int) -> Image.Image:
        return decoded(io.BytesIO(self.content(index)))

    def where(self, index: int) -> str:
        shard, offset, _ = self.place[index].tolist()
        return f"{self.files[shard]} at byte {offset}"

    def subset(self, indices: Indices) -> Shards:
        part = copy.copy(self)
        part.place, part.labels = self.place[indices], self.labels[indices]
        return part

    def order(self, seed: int, epoch: int) -> Indices:
        """Shards in random order, a few at a time, whose images are shuffled together."""
        rng = np.random.default_rng([seed, epoch])
        own, shard = np.unique(self.place[:, 0], return_inverse=True)
        window = (rng.permutation(len(own)) // WINDOW)[shard]
        shuffled = rng.permutation(len(self))
        return shuffled[np.argsort(window[shuffled], kind="stable")]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.opened = lru_cache(KEPT_OPEN)(OpenFile)


class OpenFile:
    """A file that threads read at any offset; it is closed when the last of them lets go of it."""

    file: BufferedReader | None = None

    def __init__(self, path: str) -> None:
        self.file = open_file(path)

    def read(self, size: int, offset: int) -> bytes:
        assert self.file is not None
        return os.pread(self.file.fileno(), size, offset)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


def check_sizes(files: list[str], index: Index) -> None:
    for file, shard in zip(files, index.shards, strict=True):
        if not os.path.isfile(file):
            raise ValueError(f"{file} is missing, though {INDEX} lists it; fetch or pack the shards again")
        if (size := os.path.getsize(file)) != shard.size:
            raise ValueError(
                f"{file} has {size:,} bytes, {INDEX} says {shard.size:,}: it is cut off or was changed; "
                f"fetch or pack the shards again, or remove {INDEX} if it belongs to other files"
            )


def is_shards(path: Path) -> bool:
    return path.is_dir() and any(holds_shards(folder) for folder in (path, *split_folders(path).values()))


def holds_shards(folder: Path) -> bool:
    """An index, or tar files alone: beside class folders a tar file is but somebody's download."""
    return (folder / INDEX).is_file() or (any(folder.glob("*.tar")) and not visible_folders(folder))


def open_shards(path: Path) -> Splits:
    folders = {"train": path} if holds_shards(path) else split_folders(path)
    parts: dict[str, Shards] = {}
    notes: list[str] = []
    for name in sorted(folders, key="train".__ne__):
        parts[name] = open_folder_of_shards(folders[name], parts.get("train"), notes)
    need_same_classes({folders[name]: part for name, part in parts.items()})
    if parts["train"].target is Classes:
        need_two_classes(parts["train"].classes, folders["train"])
    return Splits(parts["train"], parts.get("valid"), parts.get("test"), tuple(notes))


def open_folder_of_shards(folder: Path, train: Shards | None, notes: list[str]) -> Shards:
    """By its index; where there is none it is made, and kept if the folder may be written to."""
    if (folder / INDEX).is_file():
        return Shards(folder)
    index = import_tars(folder, least_classes=len(train.classes) if train else 0)
    try:
        write_index(folder, index)
        kept = True
    except OSError:  # a read-only folder, or a full disk: next time the tar files are read again
        kept = False
    notes.append(f"{len(index.shards):,} tar files in {folder} indexed{f'; {INDEX} written' if kept else ''}")
    return Shards(folder, index)
