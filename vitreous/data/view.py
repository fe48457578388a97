"""One crop, resize and flip transform for training, evaluation and prediction.

    source ──crop──▶ box ──resize──▶ inner ──place at offset──▶ size ──flip──▶ model input

A random resized crop fills ``size`` with its box; a center crop resizes the whole image and has a negative offset; a
letterbox has a positive offset and a border; a shifted crop has a reflected border. A view transforms images, boxes and
masks, and maps predictions back to the source image.
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

MAX_RESIZE_RATIO = 32  # if the resized image has more than this many times the visible pixels, crop before resizing
SUPPORT = 3.0  # radius of the largest interpolation filter, in pixels


@dataclass(frozen=True)
class AxisWindow:
    """The visible range of a view along one axis: ``inner`` rows from ``first``, resized from a range of the source.

    The source is cropped to start … stop; ``box`` is (start, length) within that crop.
    """

    first: int
    inner: int
    start: int
    stop: int
    box: tuple[float, float]


@dataclass(frozen=True)
class View:
    """The transform from a source image to a model's input.

    Attributes:
        source: Size (height, width) of the source image.
        box: Crop (top, left, height, width) in pixels of the source.
        inner: Size that the box is resized to.
        size: Size of the input.
        offset: Position (y, x) of the resized box in the input; negative values crop it.
        flipped: Whether the input is flipped horizontally.
        border: What fills the input outside the resized box: its reflection, or a color.
        interpolation: Interpolation of images; masks always use nearest.
    """

    source: Size
    box: Box
    inner: Size
    size: Size
    offset: Size = (0, 0)
    flipped: bool = False
    border: Literal["reflect", "fill"] = "fill"
    interpolation: Interpolation = "bilinear"

    @property
    def resamples(self) -> bool:
        return self.inner != self.source or self.box != (0, 0, *self.source)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Matrix (3, 3) from (x, y, 1) in the source to (x, y, 1) in the input, with pixel edges at integers."""
        top, left, height, width = self.box
        down, across = self.inner[0] / height, self.inner[1] / width
        right, below = self.offset[1] - left * across, self.offset[0] - top * down
        move = np.array([[across, 0, right], [0, down, below], [0, 0, 1]])
        mirror = np.array([[-1.0, 0, self.size[1]], [0, 1, 0], [0, 0, 1]])
        return mirror @ move if self.flipped else move

    def image(self, image: Image.Image, fill: Sequence[int] = (0,)) -> Tensor:
        """Transform an image to uint8 (c, y, x); ``fill`` is the border color, one value per channel."""
        self.check(image)
        part, view = self.crop_to_visible(image)
        pixels = to_channels_first(view.resized(part, RESAMPLING[self.interpolation]))
        return view.paste(pixels, torch.tensor(fill, dtype=torch.uint8))

    def mask(self, mask: Tensor) -> Tensor:
        """Transform a mask (y, x) with nearest interpolation; the border gets the ignored value."""
        image = Image.fromarray(mask.numpy())
        self.check(image)
        part, view = self.crop_to_visible(image)
        values = to_channels_first(view.resized(part, Image.Resampling.NEAREST))
        return view.paste(values, torch.tensor([IGNORED], dtype=torch.uint8))[0]

    def boxes(self, boxes: Tensor) -> Tensor:
        """Transform boxes (n, 4) as left, top, right, bottom to pixels of the input, without clipping."""
        return transform_boxes(boxes, self.matrix)

    def undo_boxes(self, boxes: Tensor) -> Tensor:
        """Transform boxes in pixels of the input back to pixels of the source."""
        return transform_boxes(boxes, np.linalg.inv(self.matrix))

    def undo_mask(self, mask: NDArray[np.uint8], outside: int) -> NDArray[np.uint8]:
        """Map a mask of the input back to the source; ``outside`` is the value where the input does not show it."""
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
                f"this view expects an image of {self.source[0]}×{self.source[1]} pixels, got "
                f"{image.height}×{image.width}; an image and its mask must have the same size"
            )

    def crop_to_visible(self, image: Image.Image) -> tuple[Image.Image, View]:
        """Crop the source to the visible part before resizing, if resizing all of it would be far more work."""
        if self.border == "reflect" or math.prod(self.inner) <= MAX_RESIZE_RATIO * math.prod(self.size):
            return image, self
        y, x = self.visible_window(0), self.visible_window(1)
        view = replace(
            self,
            source=(y.stop - y.start, x.stop - x.start),
            box=(y.box[0], x.box[0], y.box[1], x.box[1]),
            inner=(y.inner, x.inner),
            offset=(self.offset[0] + y.first, self.offset[1] + x.first),
        )
        return image.crop((x.start, y.start, x.stop, y.stop)), view

    def visible_window(self, axis: int) -> AxisWindow:
        """Compute which rows or columns of the resized box are visible in the input, and their source range."""
        first = min(max(0, -self.offset[axis]), self.inner[axis] - 1)
        last = max(first + 1, min(self.inner[axis], self.size[axis] - self.offset[axis]))
        scale = self.box[2 + axis] / self.inner[axis]
        low, high = (self.box[axis] + place * scale for place in (first, last))
        reach = SUPPORT * max(1.0, scale)
        start = max(0, math.floor(low - reach))
        stop = min(self.source[axis], math.ceil(high + reach))
        return AxisWindow(first, last - first, start, stop, box=(low - start, min(high, stop) - low))

    def resized(self, image: Image.Image, resampling: Image.Resampling) -> Image.Image:
        if not self.resamples:
            return image
        top, left, height, width = self.box
        return image.resize((self.inner[1], self.inner[0]), resampling, box=(left, top, left + width, top + height))

    def paste(self, pixels: Tensor, fill: Tensor) -> Tensor:
        """Place the resized box (c, y, x) in the input, with border and flip."""
        rows = torch.arange(self.size[0]) - self.offset[0]
        columns = torch.arange(self.size[1]) - self.offset[1]
        columns = columns.flip(0) if self.flipped else columns
        if self.border == "reflect":
            return pixels[:, reflect_indices(rows, self.inner[0])][:, :, reflect_indices(columns, self.inner[1])]
        inside = ((rows >= 0) & (rows < self.inner[0]))[:, None] & (columns >= 0) & (columns < self.inner[1])
        seen = pixels[:, rows.clamp(0, self.inner[0] - 1)][:, :, columns.clamp(0, self.inner[1] - 1)]
        return seen if bool(inside.all()) else torch.where(inside, seen, fill.expand(len(pixels))[:, None, None])


def evaluation_view(source: Size, preprocess: Preprocess) -> View:
    """Return the center crop or letterbox of an image that a model's preprocessing specifies."""
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
    """Return the view of the largest centered crop with the aspect ratio of ``size``."""
    factor = min(source[0] / size[0], source[1] / size[1])
    tall, wide = min(size[0] * factor, source[0]), min(size[1] * factor, source[1])  # rounding may exceed the source
    return View(source, ((source[0] - tall) / 2, (source[1] - wide) / 2, tall, wide), size, size, border="reflect")


def apply_views(images: Tensor, views: Sequence[View], fill: Sequence[int]) -> Tensor:
    """Apply one view per image to uint8 images (b, c, Y, X) of one size; return (b, c, y, x)."""
    if any(view.resamples or view.border == "fill" for view in views):
        return torch.stack([view.image(to_pil(image), fill) for image, view in zip(images, views, strict=True)])
    (height, width), (tall, wide) = views[0].source, views[0].size
    x = torch.arange(wide)
    offset, flipped = torch.tensor([view.offset for view in views]), torch.tensor([view.flipped for view in views])
    rows = reflect_indices(torch.arange(tall) - offset[:, :1], height)
    columns = reflect_indices(torch.where(flipped[:, None], x.flip(0), x) - offset[:, 1:], width)
    places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    flat = images.flatten(2).gather(2, places[:, None].expand(-1, images.shape[1], -1))
    return flat.view(len(images), -1, tall, wide)


def reflect_indices(place: Tensor, length: int) -> Tensor:
    """Reflect out-of-range indices at the border, repeatedly if necessary, without doubling the border pixel."""
    period = max(2 * (length - 1), 1)
    place = place % period
    return torch.minimum(place, period - place) if length > 1 else torch.zeros_like(place)


def transform_boxes(boxes: Tensor, matrix: NDArray[Any]) -> Tensor:
    x, y = (boxes[:, axis::2] * matrix[axis, axis] + matrix[axis, 2] for axis in (0, 1))
    left, right = x.sort(dim=1).values.unbind(1)
    return torch.stack([left, y[:, 0], right, y[:, 1]], dim=1).to(boxes.dtype)


def to_channels_first(image: Image.Image) -> Tensor:
    """Convert a Pillow image to uint8 (c, y, x)."""
    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)


def to_pil(pixels: Tensor) -> Image.Image:
    """Convert uint8 pixels (c, y, x) of 1, 3 or 4 channels to a Pillow image."""
    array = pixels.permute(1, 2, 0).numpy()
    if array.shape[2] not in (1, 3, 4):
        raise ValueError(f"images to resize or display must have 1, 3 or 4 channels, these have {array.shape[2]}")
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else np.ascontiguousarray(array))
