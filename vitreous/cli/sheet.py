"""A contact sheet of a dataset: some images of each class in a row of their own."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vitreous.data.base import Dataset
from vitreous.data.image_files import BadImage
from vitreous.data.labels import chunks_of, shown_by
from vitreous.data.pack import image_at

MOST_CLASSES, MOST_PER_CLASS = 30, 100
CELL, GAP = 112, 8  # pixels of an image's place, and between places
NAMES = 130  # pixels for the names at the left
TRIES = 3  # images at hand for each place, should some be broken


def contact_sheet(dataset: Dataset, output: Path, *, per_class: int = 8) -> int:
    """Draw it; of many classes only some, spread evenly. Returns how many."""
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
        place = (NAMES - GAP, row * (CELL + GAP) + GAP + CELL / 2)
        axis.text(*place, name, ha="right", va="center", fontsize=9, parse_math=False)
    figure.savefig(output)
    return count


def mosaic(dataset: Dataset, classes: list[int], per_class: int) -> Image.Image:
    """Images side by side, each as large as its place allows."""
    size = (NAMES + per_class * (CELL + GAP), GAP + len(classes) * (CELL + GAP))
    sheet = Image.new("RGB", size, "white")
    examples = examples_of(dataset, classes, per_class * TRIES)
    for row, number in enumerate(classes):
        images = readable(dataset, examples[number])
        for column, image in zip(range(per_class), images, strict=False):
            small = max(image.size) < CELL
            way = Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC
            fitted = ImageOps.pad(image.convert("RGB"), (CELL, CELL), method=way, color="white")
            sheet.paste(fitted, (NAMES + column * (CELL + GAP), GAP + row * (CELL + GAP)))
    return sheet


def examples_of(dataset: Dataset, classes: list[int], most: int) -> dict[int, list[int]]:
    """The first images of each class."""
    found: dict[int, list[int]] = {number: [] for number in classes}
    for chunk in chunks_of(dataset):
        images, shown = shown_by(dataset.class_labels(chunk))
        for number, own in found.items():
            own.extend(chunk[images[shown == number]][: most - len(own)].tolist())
        if all(len(own) >= most for own in found.values()):
            break
    return found


def readable(dataset: Dataset, indices: list[int]) -> Iterator[Image.Image]:
    for index in indices:
        try:
            yield image_at(dataset, index)
        except BadImage:
            continue
