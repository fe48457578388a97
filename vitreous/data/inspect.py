"""Inspect a dataset before training: class balance, image sizes, broken files and duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.base import ArrayDataset, Dataset, FileDataset
from vitreous.data.image_files import STRIP_PIXELS, BadImage
from vitreous.data.labels import dataset_positive_pairs, positive_pairs
from vitreous.data.pack import image_at
from vitreous.data.splits import Splits
from vitreous.data.threads import Progress, in_threads
from vitreous.spec import Size

ARRAY_CHUNK = 256  # images of an array dataset read at a time
MIN_LONG_RATIO = 3.0  # aspect ratio from which an image counts as elongated
MAX_TINY_SHARE = 0.25  # undersized images have a short side below this share of the median
MAX_LISTED = 10  # unusual images reported


@dataclass(frozen=True)
class ImageRecord:
    """Size (height, width) and pixel digest of an image, or the reason why it is broken."""

    split: str
    index: int
    location: str
    size: Size = (0, 0)
    digest: bytes = b""
    broken: str = ""

    @property
    def ratio(self) -> float:
        return max(self.size) / min(self.size)


@dataclass(frozen=True)
class Duplicate:
    """Images with identical pixels, and the label of each."""

    records: tuple[ImageRecord, ...]
    labels: tuple[str, ...]

    @property
    def between_splits(self) -> bool:
        return len({record.split for record in self.records}) > 1

    @property
    def contradictory(self) -> bool:
        return len(set(self.labels)) > 1


@dataclass(frozen=True)
class Inspection:
    """Statistics of a dataset.

    ``counts`` are images per class, by split; ``heights`` and ``widths`` are (minimum, median, maximum) of all splits.
    """

    classes: tuple[str, ...]
    totals: dict[str, int]
    counts: dict[str, NDArray[np.int64]]
    heights: tuple[int, int, int]
    widths: tuple[int, int, int]
    elongated: list[ImageRecord]
    undersized: list[ImageRecord]
    broken: list[ImageRecord]
    duplicates: list[Duplicate]

    @property
    def imbalance(self) -> float:
        """Ratio of the largest class of the training split to the smallest."""
        counts = self.counts["train"]
        return float(counts.max() / max(1, counts.min()))


def inspect(splits: Splits, *, workers: int | None = None, progress: Progress | None = None) -> Inspection:
    """Open every image of every split once and collect statistics."""
    parts = splits.parts()
    records: list[ImageRecord] = []
    total = sum(map(len, parts.values()))
    for name, dataset in parts.items():
        before = len(records)
        count = (lambda done, _, before=before: progress(before + done, total)) if progress else None
        records.extend(inspect_dataset(dataset, name, workers, count))
    seen = [record for record in records if not record.broken]
    sizes = np.array([record.size for record in seen] or [(0, 0)])
    return Inspection(
        classes=splits.train.classes,
        totals={name: len(dataset) for name, dataset in parts.items()},
        counts={name: class_counts(dataset) for name, dataset in parts.items()},
        heights=min_median_max(sizes[:, 0]),
        widths=min_median_max(sizes[:, 1]),
        elongated=sorted(
            (record for record in seen if record.ratio >= MIN_LONG_RATIO), key=lambda record: -record.ratio
        )[:MAX_LISTED],
        undersized=undersized(seen, sizes),
        broken=[record for record in records if record.broken],
        duplicates=duplicates(seen, parts),
    )


def inspect_dataset(
    dataset: Dataset, split: str, workers: int | None, progress: Progress | None
) -> Iterator[ImageRecord]:
    if isinstance(dataset, FileDataset):
        yield from in_threads(
            lambda i: inspect_image(dataset, split, i), len(dataset), workers=workers, progress=progress
        )
    elif isinstance(dataset, ArrayDataset):
        for start in range(0, len(dataset), ARRAY_CHUNK):
            chosen = np.arange(start, min(start + ARRAY_CHUNK, len(dataset)))
            for index, pixels in zip(chosen.tolist(), dataset.pixels(chosen), strict=True):
                yield ImageRecord(split, index, dataset.location(index), dataset.image_size, digest(pixels))
            if progress:
                progress(int(chosen[-1]) + 1, len(dataset))


def inspect_image(dataset: FileDataset, split: str, index: int) -> ImageRecord:
    try:
        image = image_at(dataset, index)
    except BadImage as error:
        return ImageRecord(split, index, dataset.location(index), broken=error.reason)
    return ImageRecord(split, index, dataset.location(index), (image.height, image.width), image_digest(image))


def image_digest(image: Image.Image) -> bytes:
    """Digest the RGB pixels in strips, so that large images are not copied."""
    found = new_digest((image.height, image.width, 3))
    tall = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, tall):
        strip = image.crop((0, top, image.width, min(top + tall, image.height)))
        found.update(strip.convert("RGB").tobytes())
    return found.digest()


def digest(pixels: NDArray[np.uint8]) -> bytes:
    found = new_digest(pixels.shape)
    found.update(pixels.tobytes())
    return found.digest()


def new_digest(shape: tuple[int, ...]) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16, key=repr(shape).encode())


def class_counts(dataset: Dataset) -> NDArray[np.int64]:
    """Count the images of each class."""
    return np.bincount(dataset_positive_pairs(dataset)[1], minlength=len(dataset.classes))


def min_median_max(values: NDArray[np.int64]) -> tuple[int, int, int]:
    return int(values.min()), int(np.median(values)), int(values.max())


def undersized(records: list[ImageRecord], sizes: NDArray[np.int64]) -> list[ImageRecord]:
    usual = float(np.median(sizes.min(axis=1)))
    return sorted(
        (record for record in records if min(record.size) < MAX_TINY_SHARE * usual), key=lambda record: min(record.size)
    )[:MAX_LISTED]


def duplicates(records: list[ImageRecord], parts: dict[str, Dataset]) -> list[Duplicate]:
    """Group identical images: first those across splits, then those with contradictory labels, then the others."""
    alike: dict[bytes, list[ImageRecord]] = {}
    for record in records:
        alike.setdefault(record.digest, []).append(record)
    found = [
        Duplicate(tuple(own), tuple(label(parts[record.split], record.index) for record in own))
        for own in alike.values()
        if len(own) > 1
    ]
    return sorted(found, key=lambda one: (not one.between_splits, not one.contradictory))


def label(dataset: Dataset, index: int) -> str:
    """Return the class names of an image, joined by commas."""
    _, numbers = positive_pairs(dataset.class_labels(np.array([index])))
    return ", ".join(dataset.classes[number] for number in numbers) or "nothing"
