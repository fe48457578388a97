"""The sections of a run's page that belong to segmentation: IoU of each class, pixels confused, images with masks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.pages import html
from vitreous.pages.run_folder import Run
from vitreous.tasks.predictions import Segmentation

MOST_CLASSES = 50
LARGER = 3  # small images are shown this many times as large
SMALL = 100  # pixels


def mask_sections(run: Run) -> Iterator[str]:
    if run.confusion is not None:
        yield iou_section(run, run.confusion)
        if len(run.confusion) <= MOST_CLASSES:
            yield confusion_section(run, run.confusion)
    yield examples_section(run)


def iou_section(run: Run, confusion: NDArray[np.int64]) -> str:
    hits = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - hits
    iou = np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0)
    order = [index for index in np.argsort(np.nan_to_num(iou, nan=2.0), kind="stable") if union[index]]
    drawn = html.bars([run.name(i) for i in order], [float(iou[i]) for i in order])
    reading = (
        "The hardest classes first. IoU, intersection over union: pixels of the class that were found, divided by the "
        "pixels that belong to it or were given to it. 1 is perfect."
    )
    return html.section("IoU of each class", drawn, reading)


def confusion_section(run: Run, confusion: NDArray[np.int64]) -> str:
    reading = (
        "A row holds the pixels of one class, a column those that were predicted as it. Blue cells are right, orange "
        "ones are mistakes; the stronger the color, the larger the share of the row."
    )
    names = [run.name(index) for index in range(len(confusion))]
    return html.section("Confusion matrix", html.matrix(confusion, names), reading)


def examples_section(run: Run) -> str:
    if not run.examples:
        return ""
    rows = zip(*(run.examples[name] for name in ("images", "true", "predicted")), strict=True)
    items = [
        ([png(image, mask, run.classes) for mask in (None, true, predicted)], described(true, predicted, run), "")
        for image, true, predicted in rows
    ]
    reading = "Each image, its true mask and the predicted one; below it the classes and the share of pixels right."
    return html.section("Examples", html.gallery(items), reading)


def described(true: NDArray[np.uint8], predicted: NDArray[np.uint8], run: Run) -> str:
    known = true < len(run.classes)
    there = [run.name(int(value)) for value in np.unique(true[known]) if value]
    right = float((true == predicted)[known].mean()) if known.any() else float("nan")
    return f"{', '.join(there) or run.name(0)} · {right:.1%}"


def png(image: NDArray[np.uint8], mask: NDArray[np.uint8] | None, classes: tuple[str, ...]) -> bytes:
    shown: Any = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    if mask is not None:
        shown = Segmentation(mask, classes).draw(shown)
    if max(shown.size) <= SMALL:
        shown = shown.resize((LARGER * shown.width, LARGER * shown.height), Image.Resampling.NEAREST)
    file = io.BytesIO()
    shown.save(file, "PNG")
    return file.getvalue()
