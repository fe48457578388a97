"""Packing a dataset into tar shards."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.base import ArrayDataset, Dataset, FileDataset, Indices
from vitreous.data.encoded import Encoded
from vitreous.data.image_files import BadImage
from vitreous.data.labels import as_numbers, rows_of
from vitreous.data.memory import Unreadable, unreadable
from vitreous.data.shard_index import INDEX, Index, Shard, Target, write_index
from vitreous.data.threads import Progress
from vitreous.data.view import as_image
from vitreous.files import replacing
from vitreous.samples import Classes, MultiLabels

HEADER = tarfile.BLOCKSIZE  # of a file in a plain tar: one block


def write_shards(
    dataset: Dataset, folder: Path, *, shard_size: int = 10_000, progress: Progress | None = None
) -> list[Unreadable]:
    """Tar files of ``shard_size`` images each, and at last their index; returns what could not be read.

    Files go in as they are, other pixels as PNG. What carries its final name is complete; without an index, a folder
    is unfinished.
    """
    if shard_size < 1:
        raise ValueError(f"shard_size must be at least 1, got {shard_size}")
    if not issubclass(dataset.target, Classes):
        raise ValueError(f"shards hold class labels, this data has {dataset.target.words}; use it where it lies")
    need_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[Shard] = []
    broken: list[Unreadable] = []
    for start in range(0, len(dataset), shard_size):
        own = np.arange(start, min(start + shard_size, len(dataset)))
        shards.append(write_shard(dataset, own, folder / f"{len(shards):05d}.tar", progress, broken))
    if len(broken) == len(dataset):
        raise ValueError(f"nothing to pack; {unreadable(broken, len(dataset))}" if broken else "nothing to pack")
    write_index(folder, Index(dataset.classes, dataset.target is MultiLabels, shards))
    return broken


def need_empty(folder: Path) -> None:
    """Refuse to write among files that are there."""
    if (folder / INDEX).exists():
        raise ValueError(f"{folder} holds shards already; give another folder, or remove it")
    if folder.is_dir() and (there := next(folder.iterdir(), None)):
        raise ValueError(f"{folder} is not empty, it holds {there.name}; give another folder, or remove it")


def write_shard(
    dataset: Dataset, indices: Indices, path: Path, progress: Progress | None, broken: list[Unreadable]
) -> Shard:
    kept, offsets, sizes = [], [], []
    with replacing(path) as part, tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in indices.tolist():
            try:
                content = encoded(dataset, index)
            except BadImage as error:
                broken.append((dataset.where(index), error.reason))
            else:
                member = tarfile.TarInfo(f"{index:09d}.{ending(content)}")
                member.size = len(content)
                kept.append(index)
                offsets.append(tar.offset + HEADER)
                sizes.append(len(content))
                tar.addfile(member, io.BytesIO(content))
            if progress:
                progress(index + 1, len(dataset))
    return Shard(path.name, path.stat().st_size, offsets, sizes, as_json(dataset, np.array(kept, dtype=np.int64)))


def encoded(dataset: Dataset, index: int) -> bytes:
    if isinstance(dataset, Encoded):
        return dataset.content(index)
    file = io.BytesIO()
    image_at(dataset, index).save(file, "PNG")
    return file.getvalue()


def image_at(dataset: Dataset, index: int) -> Image.Image:
    """Whatever the dataset, a Pillow image."""
    if isinstance(dataset, FileDataset):
        image = dataset.image(index)
        return image[0] if isinstance(image, tuple) else image
    assert isinstance(dataset, ArrayDataset)
    return as_image(torch.from_numpy(dataset.pixels(np.array([index]))[0]))


def ending(content: bytes) -> str:
    """By the content, since names lie; a file that is no image stays in, to be reported by who reads it."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            kind = (image.format or "bin").lower()
    except Exception:  # Pillow's plugins raise whatever comes to hand on files that are none of theirs
        return "bin"
    return "jpg" if kind == "jpeg" else kind


def as_json(dataset: Dataset, indices: NDArray[np.int64]) -> list[Target]:
    """Class numbers where they say it all, else rows with nothing for the unknown."""
    labels = dataset.class_labels(indices)
    if dataset.target is Classes and labels.ndim == 2:
        labels = as_numbers(labels)
    if labels.dtype == np.int64 and dataset.target is Classes:
        return labels.tolist()
    rows = rows_of(labels, len(dataset.classes))
    return [[None if np.isnan(value) else float(value) for value in row] for row in rows]
