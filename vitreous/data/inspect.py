"""What there is to know about a dataset before training on it: balance, sizes, broken files, duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.base import ArrayDataset, Dataset, FileDataset
from vitreous.data.image_files import STRIP, BadImage
from vitreous.data.labels import shown, shown_by
from vitreous.data.pack import image_at
from vitreous.data.splits import Splits
from vitreous.data.threads import Progress, in_threads
from vitreous.spec import Size

AT_ONCE = 256  # pixels looked at together
LONG = 3.0  # sides of this ratio make an image odd
TINY = 0.25  # … or a short side below this share of the usual one
SHOWN = 10  # odd images told


@dataclass(frozen=True)
class Look:
    """One image, seen once: its (height, width) and a digest of its pixels, or why it could not be seen."""

    split: str
    index: int
    where: str
    size: Size = (0, 0)
    digest: bytes = b""
    broken: str = ""

    @property
    def ratio(self) -> float:
        return max(self.size) / min(self.size)


@dataclass(frozen=True)
class Duplicate:
    """Images that are the same to the last pixel, and what each is said to show."""

    looks: tuple[Look, ...]
    labels: tuple[str, ...]

    @property
    def between_splits(self) -> bool:
        return len({look.split for look in self.looks}) > 1

    @property
    def contradictory(self) -> bool:
        return len(set(self.labels)) > 1


@dataclass(frozen=True)
class Inspection:
    """``counts`` are images of each class by split; sizes are (smallest, median, largest) over all splits."""

    classes: tuple[str, ...]
    totals: dict[str, int]
    counts: dict[str, NDArray[np.int64]]
    heights: tuple[int, int, int]
    widths: tuple[int, int, int]
    long: list[Look]
    tiny: list[Look]
    broken: list[Look]
    duplicates: list[Duplicate]

    @property
    def imbalance(self) -> float:
        """How many times larger the largest class of the training split is than the smallest."""
        counts = self.counts["train"]
        return float(counts.max() / max(1, counts.min()))


def inspect(splits: Splits, *, workers: int | None = None, progress: Progress | None = None) -> Inspection:
    """Every image of every split, opened once."""
    parts = splits.parts()
    looks: list[Look] = []
    total = sum(map(len, parts.values()))
    for name, dataset in parts.items():
        before = len(looks)
        count = (lambda done, _, before=before: progress(before + done, total)) if progress else None
        looks.extend(looks_at(dataset, name, workers, count))
    seen = [look for look in looks if not look.broken]
    sizes = np.array([look.size for look in seen] or [(0, 0)])
    return Inspection(
        classes=splits.train.classes,
        totals={name: len(dataset) for name, dataset in parts.items()},
        counts={name: class_counts(dataset) for name, dataset in parts.items()},
        heights=spread(sizes[:, 0]),
        widths=spread(sizes[:, 1]),
        long=sorted((look for look in seen if look.ratio >= LONG), key=lambda look: -look.ratio)[:SHOWN],
        tiny=tiny(seen, sizes),
        broken=[look for look in looks if look.broken],
        duplicates=duplicates(seen, parts),
    )


def looks_at(dataset: Dataset, split: str, workers: int | None, progress: Progress | None) -> Iterator[Look]:
    if isinstance(dataset, FileDataset):
        yield from in_threads(lambda i: look_at(dataset, split, i), len(dataset), workers=workers, progress=progress)
    elif isinstance(dataset, ArrayDataset):
        for start in range(0, len(dataset), AT_ONCE):
            chosen = np.arange(start, min(start + AT_ONCE, len(dataset)))
            for index, pixels in zip(chosen.tolist(), dataset.pixels(chosen), strict=True):
                yield Look(split, index, dataset.where(index), dataset.image_size, digest(pixels))
            if progress:
                progress(int(chosen[-1]) + 1, len(dataset))


def look_at(dataset: FileDataset, split: str, index: int) -> Look:
    try:
        image = image_at(dataset, index)
    except BadImage as error:
        return Look(split, index, dataset.where(index), broken=error.reason)
    return Look(split, index, dataset.where(index), (image.height, image.width), image_digest(image))


def image_digest(image: Image.Image) -> bytes:
    """A digest of the colors, which are looked at in strips: large images are not copied."""
    found = new_digest((image.height, image.width, 3))
    tall = max(1, STRIP // image.width)
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
    """Images that show each class."""
    return np.bincount(shown(dataset)[1], minlength=len(dataset.classes))


def spread(values: NDArray[np.int64]) -> tuple[int, int, int]:
    return int(values.min()), int(np.median(values)), int(values.max())


def tiny(looks: list[Look], sizes: NDArray[np.int64]) -> list[Look]:
    usual = float(np.median(sizes.min(axis=1)))
    return sorted((look for look in looks if min(look.size) < TINY * usual), key=lambda look: min(look.size))[:SHOWN]


def duplicates(looks: list[Look], parts: dict[str, Dataset]) -> list[Duplicate]:
    """Those between splits first, then those with different labels, then the others."""
    alike: dict[bytes, list[Look]] = {}
    for look in looks:
        alike.setdefault(look.digest, []).append(look)
    found = [
        Duplicate(tuple(own), tuple(label(parts[look.split], look.index) for look in own))
        for own in alike.values()
        if len(own) > 1
    ]
    return sorted(found, key=lambda one: (not one.between_splits, not one.contradictory))


def label(dataset: Dataset, index: int) -> str:
    """The names of what an image shows."""
    _, numbers = shown_by(dataset.class_labels(np.array([index])))
    return ", ".join(dataset.classes[number] for number in numbers) or "nothing"
