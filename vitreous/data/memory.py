"""Cache small datasets in memory: every image is decoded once and stored at full size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.base import FileDataset, Indices, Views
from vitreous.data.image_files import BadImage
from vitreous.data.threads import Progress, in_threads
from vitreous.samples import Targets

SAMPLED_IMAGES = 64  # images sampled to estimate the total size
Unreadable = tuple[str, str]  # location, reason


class DecodedDataset(FileDataset):
    """The decoded images of another dataset; everything else is delegated to it."""

    def __init__(self, images: list[Image.Image | Views], data: FileDataset) -> None:
        self.images, self.data = images, data
        self.classes, self.target, self.num_views = data.classes, data.target, data.num_views

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> Image.Image | Views:
        return self.images[index]

    def targets(self, indices: Indices) -> Targets:
        return self.data.targets(indices)

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        return self.data.class_labels(indices)

    def cameras(self, index: int) -> NDArray[np.float32] | None:
        return self.data.cameras(index)

    def order(self, seed: int, epoch: int) -> Indices:
        return self.data.order(seed, epoch)

    def location(self, index: int) -> str:
        return self.data.location(index)

    def subset(self, indices: Indices) -> DecodedDataset:
        return DecodedDataset([self.images[index] for index in indices], self.data.subset(indices))


def estimate_memory(data: FileDataset) -> int:
    """Estimate the bytes of all decoded pixels from a sample of images."""
    sizes = []
    for index in np.linspace(0, len(data) - 1, min(SAMPLED_IMAGES, len(data))).astype(int):
        try:
            sizes.append(num_bytes(data.image(int(index))))
        except BadImage:
            continue
    return round(float(np.mean(sizes or [0])) * len(data))


def num_bytes(image: Image.Image | Views) -> int:
    views = image if isinstance(image, tuple) else (image,)
    return sum(view.width * view.height * len(view.getbands()) for view in views)


def decode_into_memory(
    data: FileDataset, *, workers: int | None = None, progress: Progress | None = None
) -> tuple[DecodedDataset, list[Unreadable]]:
    """Decode all images; return the dataset without unreadable images, and a list of these."""

    def decode(index: int) -> Image.Image | Views | str:
        try:
            return data.image(index)
        except BadImage as error:
            return error.reason

    opened = list(in_threads(decode, len(data), workers=workers, progress=progress))
    good = np.array([index for index, item in enumerate(opened) if not isinstance(item, str)], dtype=np.int64)
    broken = [(data.location(index), item) for index, item in enumerate(opened) if isinstance(item, str)]
    if not len(good):
        raise ValueError(f"no image could be read; {unreadable_message(broken, len(data))}")
    return DecodedDataset([item for item in opened if not isinstance(item, str)], data.subset(good)), broken


def unreadable_message(broken: list[Unreadable], total: int) -> str:
    """Describe how many images could not be read, with one example."""
    location, reason = broken[0]
    others = f", and {len(broken) - 1:,} more" if len(broken) > 1 else ""
    return f"{len(broken):,} of {total:,} files could not be read: {location} ({reason}){others}"
