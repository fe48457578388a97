"""Small sets live in memory: decoded once, cut to one size, kept as bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vitreous.data.base import Arrays, Pictures
from vitreous.data.pictures import BadPicture
from vitreous.data.threads import Progress, in_threads
from vitreous.spec import Size, pair

MODES = {1: "L", 3: "RGB"}
Unreadable = tuple[str, str]  # where, why


def memory_needed(pictures: Pictures, image_size: Size, num_channels: int = 3) -> int:
    """Bytes that :func:`in_memory` fills with pixels."""
    height, width = pair(image_size, "image_size")
    return len(pictures) * num_channels * height * width


def in_memory(
    pictures: Pictures,
    image_size: Size,
    *,
    num_channels: int = 3,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Arrays, list[Unreadable]]:
    """All pictures as bytes of one size, and those that could not be read and are left out."""
    if num_channels not in MODES:
        raise ValueError(f"pictures have 1 or 3 channels, got num_channels={num_channels}")
    height, width = pair(image_size, "image_size")
    images = np.empty((len(pictures), num_channels, height, width), dtype=np.uint8)

    def fill(index: int) -> str | None:
        try:
            images[index] = fitted(pictures.picture(index), (height, width), MODES[num_channels])
        except BadPicture as error:
            return error.reason
        return None

    reasons = list(in_threads(fill, len(pictures), workers=workers, progress=progress))
    good = np.array([index for index, reason in enumerate(reasons) if reason is None], dtype=np.int64)
    broken = [(pictures.where(index), reason) for index, reason in enumerate(reasons) if reason is not None]
    if not len(good):
        raise ValueError(f"no picture could be read; {unreadable(broken, len(pictures))}")
    names = [pictures.where(index) for index in good]
    kept = images if not broken else images[good]
    return Arrays(kept, pictures.targets(good), pictures.classes, multi_label=pictures.multi_label, names=names), broken


def fitted(picture: Image.Image, size: Size, mode: str) -> NDArray[np.uint8]:
    """(c, y, x): as large as needed to cover ``size`` with the aspect ratio kept, what stands out cut off evenly."""
    whole = ImageOps.fit(picture.convert(mode), (size[1], size[0]), method=Image.Resampling.BICUBIC)
    pixels = np.asarray(whole)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def unreadable(broken: list[Unreadable], total: int) -> str:
    """A sentence about pictures that could not be read."""
    where, reason = broken[0]
    others = f", and {len(broken) - 1:,} more" if len(broken) > 1 else ""
    return f"{len(broken):,} of {total:,} files could not be read: {where} ({reason}){others}"
