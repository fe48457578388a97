"""Pack a dataset into tar shards."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.base import ArrayDataset, Dataset, FileDataset, Indices
from vitreous.data.encoded import EncodedDataset
from vitreous.data.image_files import BadImage
from vitreous.data.labels import to_class_indices, to_class_vectors
from vitreous.data.memory import Unreadable, unreadable_message
from vitreous.data.shard_index import INDEX, Index, Shard, Target, write_index
from vitreous.data.threads import Progress
from vitreous.data.view import to_pil
from vitreous.files import atomic_replacement
from vitreous.samples import Classes, MultiLabels

HEADER = tarfile.BLOCKSIZE  # bytes of a file's header in a USTAR archive


def write_shards(
    dataset: Dataset, folder: Path, *, shard_size: int = 10_000, progress: Progress | None = None
) -> list[Unreadable]:
    """Write tar files of ``shard_size`` images each, then their index; return the images that could not be read.

    Encoded files are stored unchanged, other images as PNG. Every file is written atomically, and the index last, so a
    folder with an index is complete.

    Raises:
        ValueError: The dataset has no class labels, the folder is not empty, or no image can be read.
    """
    if shard_size < 1:
        raise ValueError(f"shard_size must be at least 1, got {shard_size}")
    if not issubclass(dataset.target, Classes):
        raise ValueError(
            f"shards hold class labels, this dataset has {dataset.target.description}; use it without packing"
        )
    require_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[Shard] = []
    broken: list[Unreadable] = []
    for start in range(0, len(dataset), shard_size):
        own = np.arange(start, min(start + shard_size, len(dataset)))
        shards.append(write_shard(dataset, own, folder / f"{len(shards):05d}.tar", progress, broken))
    if len(broken) == len(dataset):
        raise ValueError(
            f"nothing to pack; {unreadable_message(broken, len(dataset))}" if broken else "nothing to pack"
        )
    write_index(folder, Index(dataset.classes, dataset.target is MultiLabels, shards))
    return broken


def require_empty(folder: Path) -> None:
    """Refuse a folder that already has content."""
    if (folder / INDEX).exists():
        raise ValueError(f"{folder} already holds shards; choose another folder or remove it")
    if folder.is_dir() and (there := next(folder.iterdir(), None)):
        raise ValueError(f"{folder} is not empty, it holds {there.name}; choose another folder or remove it")


def write_shard(
    dataset: Dataset, indices: Indices, path: Path, progress: Progress | None, broken: list[Unreadable]
) -> Shard:
    kept, offsets, sizes = [], [], []
    with atomic_replacement(path) as part, tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in indices.tolist():
            try:
                content = encode_image(dataset, index)
            except BadImage as error:
                broken.append((dataset.location(index), error.reason))
            else:
                member = tarfile.TarInfo(f"{index:09d}.{image_format(content)}")
                member.size = len(content)
                kept.append(index)
                offsets.append(tar.offset + HEADER)
                sizes.append(len(content))
                tar.addfile(member, io.BytesIO(content))
            if progress:
                progress(index + 1, len(dataset))
    return Shard(
        path.name, path.stat().st_size, offsets, sizes, targets_to_json(dataset, np.array(kept, dtype=np.int64))
    )


def encode_image(dataset: Dataset, index: int) -> bytes:
    if isinstance(dataset, EncodedDataset):
        return dataset.content(index)
    file = io.BytesIO()
    image_at(dataset, index).save(file, "PNG")
    return file.getvalue()


def image_at(dataset: Dataset, index: int) -> Image.Image:
    """Return an image of any dataset as a Pillow image; the first view of a scene."""
    if isinstance(dataset, FileDataset):
        image = dataset.image(index)
        return image[0] if isinstance(image, tuple) else image
    assert isinstance(dataset, ArrayDataset)
    return to_pil(torch.from_numpy(dataset.pixels(np.array([index]))[0]))


def image_format(content: bytes) -> str:
    """Detect the file suffix from the content; ``bin`` if it is not an image, which is reported when it is read."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            kind = (image.format or "bin").lower()
    except Exception:  # Pillow's plugins may raise any exception on other formats
        return "bin"
    return "jpg" if kind == "jpeg" else kind


def targets_to_json(dataset: Dataset, indices: NDArray[np.int64]) -> list[Target]:
    """Convert targets to class indices if these suffice, otherwise to class vectors with None for unknown labels."""
    labels = dataset.class_labels(indices)
    if dataset.target is Classes and labels.ndim == 2:
        labels = to_class_indices(labels)
    if labels.dtype == np.int64 and dataset.target is Classes:
        return labels.tolist()
    rows = to_class_vectors(labels, len(dataset.classes))
    return [[None if np.isnan(value) else float(value) for value in row] for row in rows]
