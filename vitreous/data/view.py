"""One geometry for training, evaluation and prediction: which part of a source image a model sees, and where.

    source ──crop──▶ box ──resize──▶ inner ──place at offset──▶ size ──mirror──▶ what the model sees

A random resized crop fills ``size`` with its box; evaluation resizes the whole image and keeps the middle (a negative
offset); a letterbox leaves a border (a positive one); a shifted crop reflects its border. A view applies itself to an
image, to boxes and to masks, and undoes itself on predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.samples import IGNORED
from vitreous.spec import Interpolation, Preprocess, Size

Box = tuple[float, float, float, float]
RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}

MOST_RESIZED = 32  # times what is shown; beyond it, only the part that is shown is resized
SUPPORT = 3.0  # pixels beside its own that a resized pixel is made of, at most


@dataclass(frozen=True)
class Shown:
    """One axis of what a view shows: ``inner`` rows from ``first``, made of ``box`` (start, length) in start … stop."""

    first: int
    inner: int
    start: int
    stop: int
    box: tuple[float, float]


@dataclass(frozen=True)
class View:
    """From a source image to a model's input; sizes are (height, width)."""

    source: Size
    box: Box  # top, left, height, width in pixels of the source
    inner: Size  # what the box is resized to
    size: Size
    offset: Size = (0, 0)  # where the inner part begins; negative: it is cut off
    flipped: bool = False
    border: Literal["reflect", "fill"] = "fill"
    interpolation: Interpolation = "bilinear"

    @property
    def resamples(self) -> bool:
        return self.inner != self.source or self.box != (0, 0, *self.source)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """(3, 3): from (x, y, 1) in the source to (x, y, 1) in the input, pixel edges at whole numbers."""
        top, left, height, width = self.box
        down, across = self.inner[0] / height, self.inner[1] / width
        right, below = self.offset[1] - left * across, self.offset[0] - top * down
        move = np.array([[across, 0, right], [0, down, below], [0, 0, 1]])
        mirror = np.array([[-1.0, 0, self.size[1]], [0, 1, 0], [0, 0, 1]])
        return mirror @ move if self.flipped else move

    def image(self, image: Image.Image, fill: Sequence[int] = (0,)) -> Tensor:
        """What the model sees, as bytes (c, y, x); ``fill`` is the color of the border, one value per channel."""
        self.check(image)
        part, view = self.narrowed(image)
        pixels = as_channels(view.resized(part, RESAMPLING[self.interpolation]))
        return view.placed(pixels, torch.tensor(fill, dtype=torch.uint8))

    def mask(self, mask: Tensor) -> Tensor:
        """The same for a class per pixel (y, x): values are never blended, and the border is ignored."""
        image = Image.fromarray(mask.numpy())
        self.check(image)
        part, view = self.narrowed(image)
        values = as_channels(view.resized(part, Image.Resampling.NEAREST))
        return view.placed(values, torch.tensor([IGNORED], dtype=torch.uint8))[0]

    def boxes(self, boxes: Tensor) -> Tensor:
        """Boxes (n, 4) as left, top, right, bottom, in the input's pixels; not cut off at its edge."""
        return moved(boxes, self.matrix)

    def undo_boxes(self, boxes: Tensor) -> Tensor:
        """Boxes in the input's pixels, back in those of the source."""
        return moved(boxes, np.linalg.inv(self.matrix))

    def undo_mask(self, mask: NDArray[np.uint8], outside: int) -> NDArray[np.uint8]:
        """A class per pixel of the input, back on the source; ``outside`` where the input does not show it."""
        matrix, indices = self.matrix, []
        for axis, length, limit in ((1, self.source[0], self.size[0]), (0, self.source[1], self.size[1])):
            place = np.floor(matrix[axis, axis] * (np.arange(length) + 0.5) + matrix[axis, 2]).astype(np.int64)
            indices.append((np.clip(place, 0, limit - 1), (place >= 0) & (place < limit)))
        (rows, down), (columns, across) = indices
        seen = mask[np.ix_(rows, columns)]
        return np.where(down[:, None] & across, seen, np.uint8(outside))

    def check(self, image: Image.Image) -> None:
        if (image.height, image.width) != self.source:
            raise ValueError(
                f"a view of {self.source[0]}×{self.source[1]} pixels was given {image.height}×{image.width}; "
                "an image and its mask must have one size"
            )

    def narrowed(self, image: Image.Image) -> tuple[Image.Image, View]:
        """Image and view; where far more would be resized than is shown, only the part that is shown, and its view."""
        if self.border == "reflect" or math.prod(self.inner) <= MOST_RESIZED * math.prod(self.size):
            return image, self
        y, x = self.shown(0), self.shown(1)
        view = replace(
            self,
            source=(y.stop - y.start, x.stop - x.start),
            box=(y.box[0], x.box[0], y.box[1], x.box[1]),
            inner=(y.inner, x.inner),
            offset=(self.offset[0] + y.first, self.offset[1] + x.first),
        )
        return image.crop((x.start, y.start, x.stop, y.stop)), view

    def shown(self, axis: int) -> Shown:
        """The rows or columns of the inner part that lie within the input, with what they are made of."""
        first = min(max(0, -self.offset[axis]), self.inner[axis] - 1)
        last = max(first + 1, min(self.inner[axis], self.size[axis] - self.offset[axis]))
        scale = self.box[2 + axis] / self.inner[axis]
        low, high = (self.box[axis] + place * scale for place in (first, last))
        reach = SUPPORT * max(1.0, scale)
        start = max(0, math.floor(low - reach))
        stop = min(self.source[axis], math.ceil(high + reach))
        return Shown(first, last - first, start, stop, box=(low - start, min(high, stop) - low))

    def resized(self, image: Image.Image, resampling: Image.Resampling) -> Image.Image:
        if not self.resamples:
            return image
        top, left, height, width = self.box
        return image.resize((self.inner[1], self.inner[0]), resampling, box=(left, top, left + width, top + height))

    def placed(self, pixels: Tensor, fill: Tensor) -> Tensor:
        """The inner part (c, y, x) in its place, mirrored where the view is."""
        rows = torch.arange(self.size[0]) - self.offset[0]
        columns = torch.arange(self.size[1]) - self.offset[1]
        columns = columns.flip(0) if self.flipped else columns
        if self.border == "reflect":
            return pixels[:, reflected(rows, self.inner[0])][:, :, reflected(columns, self.inner[1])]
        inside = ((rows >= 0) & (rows < self.inner[0]))[:, None] & (columns >= 0) & (columns < self.inner[1])
        seen = pixels[:, rows.clamp(0, self.inner[0] - 1)][:, :, columns.clamp(0, self.inner[1] - 1)]
        return seen if bool(inside.all()) else torch.where(inside, seen, fill.expand(len(pixels))[:, None, None])


def evaluation_view(source: Size, preprocess: Preprocess) -> View:
    """The middle of an image, or all of it in a letterbox, as a model's spec says."""
    size = preprocess.image_size
    if preprocess.fit == "letterbox":
        factor = min(size[0] / source[0], size[1] / source[1])
        inner = max(1, round(source[0] * factor)), max(1, round(source[1] * factor))
    else:
        least = [int(side / preprocess.crop_ratio) for side in size]
        if source[0] * least[1] > source[1] * least[0]:  # tall for the crop: the width decides
            inner = int(least[1] * source[0] / source[1]), least[1]
        else:
            inner = least[0], int(least[0] * source[1] / source[0])
    offset = -round((inner[0] - size[0]) / 2), -round((inner[1] - size[1]) / 2)
    return View(source, (0, 0, *source), inner, size, offset, interpolation=preprocess.interpolation)


def covering_view(source: Size, size: Size) -> View:
    """The largest part in the middle of an image that has the aspect ratio of ``size``."""
    factor = min(source[0] / size[0], source[1] / size[1])
    tall, wide = min(size[0] * factor, source[0]), min(size[1] * factor, source[1])  # rounding may exceed the source
    return View(source, ((source[0] - tall) / 2, (source[1] - wide) / 2, tall, wide), size, size, border="reflect")


def seen_through(images: Tensor, views: Sequence[View], fill: Sequence[int]) -> Tensor:
    """Bytes (b, c, Y, X) of one size → what each image's view shows, (b, c, y, x)."""
    if any(view.resamples or view.border == "fill" for view in views):
        return torch.stack([view.image(as_image(image), fill) for image, view in zip(images, views, strict=True)])
    (height, width), (tall, wide) = views[0].source, views[0].size
    x = torch.arange(wide)
    offset, flipped = torch.tensor([view.offset for view in views]), torch.tensor([view.flipped for view in views])
    rows = reflected(torch.arange(tall) - offset[:, :1], height)
    columns = reflected(torch.where(flipped[:, None], x.flip(0), x) - offset[:, 1:], width)
    places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    flat = images.flatten(2).gather(2, places[:, None].expand(-1, images.shape[1], -1))
    return flat.view(len(images), -1, tall, wide)


def reflected(place: Tensor, length: int) -> Tensor:
    """Places beyond the border turn back at it, as often as they must; the border itself is not doubled."""
    period = max(2 * (length - 1), 1)
    place = place % period
    return torch.minimum(place, period - place) if length > 1 else torch.zeros_like(place)


def moved(boxes: Tensor, matrix: NDArray[Any]) -> Tensor:
    x, y = (boxes[:, axis::2] * matrix[axis, axis] + matrix[axis, 2] for axis in (0, 1))
    left, right = x.sort(dim=1).values.unbind(1)
    return torch.stack([left, y[:, 0], right, y[:, 1]], dim=1).to(boxes.dtype)


def as_channels(image: Image.Image) -> Tensor:
    """An image as bytes (c, y, x)."""
    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)


def as_image(pixels: Tensor) -> Image.Image:
    """Bytes (c, y, x) as an image of one, three or four channels."""
    array = pixels.permute(1, 2, 0).numpy()
    if array.shape[2] not in (1, 3, 4):
        raise ValueError(f"images have 1, 3 or 4 channels to be resized or shown, these have {array.shape[2]}")
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else np.ascontiguousarray(array))
