"""Typed predictions for one image, which can be printed, drawn onto the image and written as JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from vitreous.samples import IGNORED
from vitreous.spec import Size

GOLDEN_RATIO = 0.61803398875  # hue step that keeps the colors of any number of classes apart


class InverseView(Protocol):
    """The part of a view (``data/view.py``) that maps predictions back onto the source image."""

    @property
    def source(self) -> Size: ...

    def undo_mask(self, mask: NDArray[np.uint8], outside: int) -> NDArray[np.uint8]: ...

    def undo_boxes(self, boxes: Tensor) -> Tensor: ...


class Prediction(ABC):
    """Base class of predictions for one image."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the prediction as JSON-serializable values."""

    @abstractmethod
    def __str__(self) -> str: ...

    def draw(self, image: Image.Image) -> Image.Image:
        """Return a copy of the image with the prediction drawn on or below it."""
        return with_caption(image, str(self))


@dataclass(frozen=True)
class ClassScores(Prediction):
    """The most probable classes of an image, in descending order, with their softmax probabilities."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    indices: tuple[int, ...]

    @property
    def best(self) -> str:
        return self.classes[0]

    def to_json(self) -> dict[str, Any]:
        shares = [round(share, 6) for share in self.probabilities]
        return {"classes": list(self.classes), "probabilities": shares, "indices": list(self.indices)}

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.1%}" for name, share in zip(self.classes, self.probabilities, strict=True))


@dataclass(frozen=True)
class LabelScores(Prediction):
    """The most probable labels of an image, in descending order, with an independent probability for each."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    indices: tuple[int, ...]
    threshold: float = 0.5

    @property
    def best(self) -> str:
        return self.classes[0]

    @property
    def present(self) -> tuple[str, ...]:
        """The listed labels whose probability is at least the threshold."""
        both = zip(self.classes, self.probabilities, strict=True)
        return tuple(name for name, probability in both if probability >= self.threshold)

    def to_json(self) -> dict[str, Any]:
        shares = [round(share, 6) for share in self.probabilities]
        found = {"classes": list(self.classes), "probabilities": shares, "indices": list(self.indices)}
        return found | {"present": list(self.present)}

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.1%}" for name, share in zip(self.classes, self.probabilities, strict=True))


@dataclass(frozen=True)
class Segmentation(Prediction):
    """A class index for every pixel of the source image; 255 outside the model's view."""

    mask: NDArray[np.uint8] = field(repr=False)  # (y, x)
    classes: tuple[str, ...]  # by index

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of pixels of each class, in descending order, ignoring pixels outside the view."""
        count = np.bincount(self.mask[self.mask != IGNORED], minlength=len(self.classes))
        total = max(1, int(count.sum()))
        return {self.classes[i]: float(count[i]) / total for i in np.argsort(-count, kind="stable") if count[i]}

    @property
    def best(self) -> str:
        return next(iter(self.shares), "")

    def to_json(self) -> dict[str, Any]:
        """Return the mask run-length encoded: ``runs`` are (class, length) in raster order."""
        flat = self.mask.reshape(-1)
        starts = np.flatnonzero(np.diff(flat, prepend=flat[0] + 1))
        lengths = np.diff(np.append(starts, len(flat)))
        runs = [[int(flat[start]), int(length)] for start, length in zip(starts, lengths, strict=True)]
        return {"size": list(self.mask.shape), "classes": list(self.classes), "shares": self.shares, "runs": runs}

    def draw(self, image: Image.Image, opacity: float = 0.55) -> Image.Image:
        """Overlay the classes as colors; class 0, by convention the background, stays transparent."""
        palette = np.zeros((256, 3), dtype=np.uint8)
        palette[: len(self.classes)] = [class_color(index) for index in range(len(self.classes))]
        paint = Image.fromarray(palette[self.mask])
        strength = np.where((self.mask == 0) | (self.mask == IGNORED), 0, round(255 * opacity)).astype(np.uint8)
        return Image.composite(paint, image.convert("RGB"), Image.fromarray(strength))

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.1%}" for name, share in list(self.shares.items())[:5])


@dataclass(frozen=True)
class Detections(Prediction):
    """Objects in the source image by descending score; boxes are (left, top, right, bottom) in pixels."""

    boxes: NDArray[np.float32]  # (n, 4)
    classes: tuple[str, ...]
    scores: tuple[float, ...]
    indices: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        rows = zip(self.classes, self.scores, self.boxes.tolist(), strict=True)
        return {"objects": [{"name": name, "score": score, "box": box} for name, score, box in rows]}

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """Return COCO results, with boxes as (x, y, width, height)."""
        rows = zip(self.indices, self.scores, self.boxes.tolist(), strict=True)
        return [
            {"image_id": image_id, "category_id": index, "score": score, "bbox": [x0, y0, x1 - x0, y1 - y0]}
            for index, score, (x0, y0, x1, y1) in rows
        ]

    def draw(self, image: Image.Image) -> Image.Image:
        drawn = image.convert("RGB")
        pen = ImageDraw.Draw(drawn)
        for index, name, score, box in zip(self.indices, self.classes, self.scores, self.boxes.tolist(), strict=True):
            pen.rectangle(box, outline=class_color(index), width=max(1, min(drawn.size) // 150))
            pen.text((box[0] + 2, box[1] + 1), f"{name} {score:.0%}", fill=class_color(index))
        return drawn

    def __str__(self) -> str:
        both = zip(self.classes, self.scores, strict=True)
        return ", ".join(f"{name} {score:.0%}" for name, score in both) or "no objects"


def class_color(index: int) -> tuple[int, int, int]:
    """Return a color for a class index, with well-separated hues for consecutive indices."""
    hue = Image.new("HSV", (1, 1), (int(255 * (index * GOLDEN_RATIO % 1)), 200, 235)).convert("RGB").getpixel((0, 0))
    assert isinstance(hue, tuple)
    red, green, blue = (int(value) for value in hue)
    return red, green, blue


def with_caption(image: Image.Image, text: str) -> Image.Image:
    """Return the image with a line of text below it."""
    shown = image.convert("RGB")
    canvas = Image.new("RGB", (shown.width, shown.height + 14), "white")
    canvas.paste(shown)
    ImageDraw.Draw(canvas).text((2, shown.height + 1), text, fill="black")
    return canvas
