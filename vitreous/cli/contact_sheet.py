"""Contact sheet of a dataset: one row of example images per class."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vitreous.data.base import Dataset
from vitreous.data.image_files import BadImage
from vitreous.data.labels import index_chunks, positive_pairs
from vitreous.data.pack import image_at

MOST_CLASSES, MOST_PER_CLASS = 30, 100
CELL, GAP = 112, 8  # pixels per cell, and between cells
LABEL_WIDTH = 130  # pixels for the class names on the left
CANDIDATES = 3  # images per cell, since some may be unreadable


def contact_sheet(dataset: Dataset, output: Path, *, per_class: int = 8) -> int:
    """Draw the sheet and return the number of classes shown: at most ``MOST_CLASSES``, evenly spaced."""
    from matplotlib.figure import Figure

    count = min(MOST_CLASSES, len(dataset.classes))
    chosen = np.linspace(0, len(dataset.classes) - 1, count).round().astype(int).tolist()
    sheet = mosaic(dataset, chosen, per_class)
    figure = Figure(figsize=(sheet.width / 100, sheet.height / 100), dpi=100)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    axis.imshow(sheet, interpolation="nearest")
    for row, number in enumerate(chosen):
        name = "\n".join(textwrap.wrap(dataset.classes[number], 16)[:5])
        position = (LABEL_WIDTH - GAP, row * (CELL + GAP) + GAP + CELL / 2)
        axis.text(*position, name, ha="right", va="center", fontsize=9, parse_math=False)
    figure.savefig(output)
    return count


def mosaic(dataset: Dataset, classes: list[int], per_class: int) -> Image.Image:
    """Paste the images into a grid, each scaled to fit its cell."""
    size = (LABEL_WIDTH + per_class * (CELL + GAP), GAP + len(classes) * (CELL + GAP))
    sheet = Image.new("RGB", size, "white")
    examples = examples_of(dataset, classes, per_class * CANDIDATES)
    for row, number in enumerate(classes):
        images = readable_images(dataset, examples[number])
        for column, image in zip(range(per_class), images, strict=False):
            small = max(image.size) < CELL
            resampling = Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC
            fitted = ImageOps.pad(image.convert("RGB"), (CELL, CELL), method=resampling, color="white")
            sheet.paste(fitted, (LABEL_WIDTH + column * (CELL + GAP), GAP + row * (CELL + GAP)))
    return sheet


def examples_of(dataset: Dataset, classes: list[int], most: int) -> dict[int, list[int]]:
    """Return the indices of the first ``most`` images of each class."""
    found: dict[int, list[int]] = {number: [] for number in classes}
    for chunk in index_chunks(dataset):
        images, shown = positive_pairs(dataset.class_labels(chunk))
        for number, own in found.items():
            own.extend(chunk[images[shown == number]][: most - len(own)].tolist())
        if all(len(own) >= most for own in found.values()):
            break
    return found


def readable_images(dataset: Dataset, indices: list[int]) -> Iterator[Image.Image]:
    """Yield the images that can be decoded."""
    for index in indices:
        try:
            yield image_at(dataset, index)
        except BadImage:
            continue
