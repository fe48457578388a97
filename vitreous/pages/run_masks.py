"""Sections of the report of a segmentation run: per-class IoU, confusion matrix, examples with masks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.pages import html
from vitreous.pages.run_folder import RunFolder
from vitreous.tasks.predictions import Segmentation

MAX_CLASSES = 50
SMALL = 100  # pixels; smaller images are enlarged
ENLARGEMENT = 3


def mask_sections(run: RunFolder) -> Iterator[str]:
    if run.confusion is not None:
        yield iou_section(run, run.confusion)
        if len(run.confusion) <= MAX_CLASSES:
            yield confusion_section(run, run.confusion)
    yield examples_section(run)


def iou_section(run: RunFolder, confusion: NDArray[np.int64]) -> str:
    hits = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - hits
    iou = np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0)
    order = [index for index in np.argsort(np.nan_to_num(iou, nan=2.0), kind="stable") if union[index]]
    drawn = html.bars([run.name(i) for i in order], [float(iou[i]) for i in order])
    reading = (
        "The hardest classes first. IoU (intersection over union): correct pixels of the class / pixels that belong to "
        "it or are predicted as it. 1 is perfect."
    )
    return html.section("Per-class IoU", drawn, reading)


def confusion_section(run: RunFolder, confusion: NDArray[np.int64]) -> str:
    reading = (
        "Rows are true classes, columns predicted classes, counts are pixels. Blue cells are correct, orange ones are "
        "mistakes; the stronger the color, the larger the fraction of the row."
    )
    names = [run.name(index) for index in range(len(confusion))]
    return html.section("Confusion matrix", html.matrix(confusion, names), reading)


def examples_section(run: RunFolder) -> str:
    if not run.examples:
        return ""
    rows = zip(*(run.examples[name] for name in ("images", "true", "predicted")), strict=True)
    items = [
        ([png(image, mask, run.classes) for mask in (None, true, predicted)], caption(true, predicted, run), "")
        for image, true, predicted in rows
    ]
    reading = "Each image with its true and its predicted mask; below, the classes present and the pixel accuracy."
    return html.section("Examples", html.gallery(items), reading)


def caption(true: NDArray[np.uint8], predicted: NDArray[np.uint8], run: RunFolder) -> str:
    known = true < len(run.classes)
    present = [run.name(int(value)) for value in np.unique(true[known]) if value]
    accuracy = float((true == predicted)[known].mean()) if known.any() else float("nan")
    return f"{', '.join(present) or run.name(0)} · {accuracy:.1%}"


def png(image: NDArray[np.uint8], mask: NDArray[np.uint8] | None, classes: tuple[str, ...]) -> bytes:
    shown: Any = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    if mask is not None:
        shown = Segmentation(mask, classes).draw(shown)
    if max(shown.size) <= SMALL:
        shown = shown.resize((ENLARGEMENT * shown.width, ENLARGEMENT * shown.height), Image.Resampling.NEAREST)
    file = io.BytesIO()
    shown.save(file, "PNG")
    return file.getvalue()
