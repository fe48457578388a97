"""Datasets larger than memory: images in uncompressed tar files with an index of byte offsets.

A folder holds ``00000.tar``, ``00001.tar`` … and ``index.json``, or ``train``, ``val`` and ``test`` folders with these.
The index allows random access, so the order of an epoch needs no shuffle buffer. Tar files in the WebDataset convention
(``key.jpg`` with ``key.cls``) are indexed in place.
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
from vitreous.data.encoded import EncodedDataset
from vitreous.data.image_files import BadImage, decode_image
from vitreous.data.shard_index import INDEX, Index, import_tars, read_index, write_index
from vitreous.data.splits import Splits, require_same_classes, require_two_classes, split_folders, visible_folders
from vitreous.files import CannotRead, open_file
from vitreous.samples import Classes, MultiLabels

SHUFFLE_WINDOW = 4  # shards shuffled together, so that reads stay local
MAX_OPEN_SHARDS = 64  # operating systems limit a process to some hundred open files


class ShardDataset(EncodedDataset):
    """A classification dataset of images inside tar files; safe to read from several threads and processes."""

    def __init__(self, folder: Path, index: Index | None = None) -> None:
        index = index or read_index(folder)
        super().__init__(index.targets(), index.classes, target=MultiLabels if index.multi_label else Classes)
        self.files = [str(folder / shard.name) for shard in index.shards]
        self.spans = index.spans()  # (n, 3): shard, offset, size
        self.opened = lru_cache(MAX_OPEN_SHARDS)(OpenFile)
        check_sizes(self.files, index)

    def content(self, index: int) -> bytes:
        shard, offset, size = self.spans[index].tolist()
        try:
            return self.opened(self.files[shard]).read(size, offset)
        except CannotRead as error:
            raise BadImage(str(error), error.strerror) from None

    def image(self, index: int) -> Image.Image:
        return decode_image(io.BytesIO(self.content(index)))

    def location(self, index: int) -> str:
        shard, offset, _ = self.spans[index].tolist()
        return f"{self.files[shard]} at byte {offset}"

    def subset(self, indices: Indices) -> ShardDataset:
        part = copy.copy(self)
        part.spans, part.labels = self.spans[indices], self.labels[indices]
        return part

    def order(self, seed: int, epoch: int) -> Indices:
        """Shuffle the shards, then the images within windows of a few shards."""
        rng = np.random.default_rng([seed, epoch])
        own, shard = np.unique(self.spans[:, 0], return_inverse=True)
        window = (rng.permutation(len(own)) // SHUFFLE_WINDOW)[shard]
        shuffled = rng.permutation(len(self))
        return shuffled[np.argsort(window[shuffled], kind="stable")]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.opened = lru_cache(MAX_OPEN_SHARDS)(OpenFile)


class OpenFile:
    """A file for concurrent reads at any offset, closed with its last reference."""

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
            raise ValueError(f"{file} is listed in {INDEX} but missing; fetch or pack the shards again")
        if (size := os.path.getsize(file)) != shard.size:
            raise ValueError(
                f"{file} has {size:,} bytes, but {INDEX} lists {shard.size:,}: it is truncated or was changed; "
                f"fetch or pack the shards again, or remove {INDEX} if it belongs to other files"
            )


def is_shards(path: Path) -> bool:
    return path.is_dir() and any(holds_shards(folder) for folder in (path, *split_folders(path).values()))


def holds_shards(folder: Path) -> bool:
    """Return whether a folder has an index, or tar files but no folders: next to class folders a tar is a download."""
    return (folder / INDEX).is_file() or (any(folder.glob("*.tar")) and not visible_folders(folder))


def open_shards(path: Path) -> Splits:
    folders = {"train": path} if holds_shards(path) else split_folders(path)
    parts: dict[str, ShardDataset] = {}
    notes: list[str] = []
    for name in sorted(folders, key="train".__ne__):
        parts[name] = open_folder_of_shards(folders[name], parts.get("train"), notes)
    require_same_classes({folders[name]: part for name, part in parts.items()})
    if parts["train"].target is Classes:
        require_two_classes(parts["train"].classes, folders["train"])
    return Splits(parts["train"], parts.get("valid"), parts.get("test"), tuple(notes))


def open_folder_of_shards(folder: Path, train: ShardDataset | None, notes: list[str]) -> ShardDataset:
    """Open a folder of shards; create a missing index, and save it if the folder is writable."""
    if (folder / INDEX).is_file():
        return ShardDataset(folder)
    index = import_tars(folder, least_classes=len(train.classes) if train else 0)
    try:
        write_index(folder, index)
        kept = True
    except OSError:  # a read-only folder or a full disk: the tar files are indexed again next time
        kept = False
    notes.append(f"{len(index.shards):,} tar files in {folder} indexed{f'; {INDEX} written' if kept else ''}")
    return ShardDataset(folder, index)
