"""Crops and flips: of a batch of bytes at once, or of one picture of any size.

Both read the same random numbers in the same way, so that a set gives the same crops from memory as from files.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from vitreous.spec import Interpolation, Size

if TYPE_CHECKING:
    from vitreous.data.augment import Augment, Dice

TRIES = 10  # boxes thrown for a picture, of which the first that fits is taken
BOX_NUMBERS = 2 * TRIES + 2  # an area and an aspect for each try, and a place
CROP_ASPECT = (3 / 4, 4 / 3)

Numbers = NDArray[np.float32]


def cut(images: Tensor, augment: Augment, size: Size, dice: Dice) -> Tensor:
    """Bytes (b, c, Y, X) → bytes (b, c, y, x): every picture with a crop and a flip of its own."""
    dice.check(images)
    numbers, flipped = crop_numbers(augment, dice)
    if augment.crop != "resized":
        return shifted(fit(images, size), shifts(numbers, augment.shift), flipped)
    height, width = images.shape[-2:]
    boxes = torch.from_numpy(crop_boxes(numbers, (height, width), augment.crop_scale) / [height, width, height, width])
    return sampled(shrunk(images, size), boxes, size, flipped=flipped)


def cut_picture(picture: Image.Image, augment: Augment, size: Size, dice: Dice) -> NDArray[np.uint8]:
    """The same for one picture, with its row of the dice: bytes (c, y, x), antialiased."""
    source = (picture.height, picture.width)
    numbers, flipped = crop_numbers(augment, dice)
    if augment.crop == "resized":
        box = crop_boxes(numbers, source, augment.crop_scale)[0].astype(float)
    else:
        box = covering_box(source, size)
    top, left, height, width = box.tolist()
    part = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    pixels = torch.from_numpy(np.array(part)).reshape(1, *size, -1).permute(0, 3, 1, 2)
    return shifted(pixels, shifts(numbers, augment.shift), flipped)[0].numpy()


def crop_numbers(augment: Augment, dice: Dice) -> tuple[Numbers, Tensor]:
    """(b, n) for a box, of which the last two are its place, and (b,) whether to flip."""
    numbers = dice.uniform("crop", BOX_NUMBERS + 1)
    return numbers[:, :-1], torch.from_numpy(numbers[:, -1] < augment.flip_rate)


def shifts(numbers: Numbers, pad: int) -> Tensor:
    """(b, 2): steps down and to the right, from −pad to pad."""
    return torch.from_numpy((numbers[:, -2:] * (2 * pad + 1)).astype(np.int64) - pad)


def shifted(images: Tensor, shift: Tensor, flipped: Tensor) -> Tensor:
    """Each picture seen through a moved window, its border reflected, and mirrored where ``flipped``."""
    height, width = images.shape[-2:]
    x = torch.arange(width)
    rows = reflected(torch.arange(height) + shift[:, :1], height)
    columns = reflected(torch.where(flipped[:, None], x.flip(0), x) + shift[:, 1:], width)
    places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    return images.flatten(2).gather(2, places[:, None].expand(-1, images.shape[1], -1)).view(images.shape)


def reflected(place: Tensor, length: int) -> Tensor:
    """Places beyond the border turn back at it, as often as they must; the border itself is not doubled."""
    period = max(2 * (length - 1), 1)
    place = place % period
    return torch.minimum(place, period - place) if length > 1 else torch.zeros_like(place)


def crop_boxes(numbers: Numbers, size: Size, scale: tuple[float, float]) -> NDArray[np.int64]:
    """(b, 4): top, left, height, width of torchvision's ``RandomResizedCrop``."""
    boxes, found = random_boxes(numbers, size, area=scale, aspect=CROP_ASPECT)
    height, width = size
    tall, wide = min(height, round(width / CROP_ASPECT[0])), min(width, round(height * CROP_ASPECT[1]))
    middle = np.array([(height - tall) // 2, (width - wide) // 2, tall, wide])
    return np.where(found[:, None], boxes, middle)


def random_boxes(
    numbers: Numbers, size: Size, *, area: tuple[float, float], aspect: tuple[float, float]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Boxes (b, 4) as top, left, height, width, and whether any of the tries fitted into the picture.

    The share of the area is uniform within ``area``, the aspect ratio log-uniform within ``aspect``.
    """
    height, width = size
    spread, stretch = numbers[:, :TRIES].astype(float), numbers[:, TRIES : 2 * TRIES].astype(float)
    areas = (area[0] + (area[1] - area[0]) * spread) * (height * width)
    aspects = aspect[0] * (aspect[1] / aspect[0]) ** stretch
    talls, wides = np.round(np.sqrt(areas / aspects)), np.round(np.sqrt(areas * aspects))
    fits = (talls > 0) & (talls <= height) & (wides > 0) & (wides <= width)
    rows, first = np.arange(len(numbers)), fits.argmax(axis=1)
    tall, wide = talls[rows, first], wides[rows, first]
    room = np.maximum(np.stack([height - tall, width - wide], axis=1), 0) + 1
    place = np.floor(numbers[:, -2:] * room)
    return np.column_stack([place, tall, wide]).astype(np.int64), fits[rows, first]


def sampled(images: Tensor, boxes: Tensor, size: Size, *, flipped: Tensor) -> Tensor:
    """Each picture's box, given in shares of its sides, stretched to ``size``; nothing outside the box is seen."""
    y = coordinates(boxes[:, 0:1], boxes[:, 2:3], size[0], pixel=1 / images.shape[-2])
    x = coordinates(boxes[:, 1:2], boxes[:, 3:4], size[1], pixel=1 / images.shape[-1])
    x = torch.where(flipped[:, None], x.flip(1), x)
    grid = torch.empty(len(images), *size, 2)
    grid[..., 0], grid[..., 1] = x[:, None, :], y[:, :, None]
    pixels = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return pixels.add_(0.5).to(torch.uint8)  # an average of bytes, hence never above 255.5


def coordinates(start: Tensor, length: Tensor, number: int, *, pixel: float) -> Tensor:
    """(b, number): where along an axis to look, from −1 to 1 as ``grid_sample`` has it."""
    steps = (torch.arange(number) + 0.5) / number
    inside = (start + steps * length).clamp(start + pixel / 2, start + length - pixel / 2)
    return 2 * inside - 1


def shrunk(images: Tensor, size: Size) -> Tensor:
    """Pictures much larger than needed shrink to twice the size first: bilinear sampling would skip their pixels."""
    height, width = images.shape[-2:]
    factor = max(2 * size[0] / height, 2 * size[1] / width)
    if factor >= 1:
        return images
    return v2.functional.resize(images, [math.ceil(height * factor), math.ceil(width * factor)], antialias=True)


def fit(images: Tensor, size: Size, *, crop_ratio: float = 1.0, interpolation: Interpolation = "bilinear") -> Tensor:
    """Resized with the aspect ratio kept, then the middle of it: ``crop_ratio`` of the tighter side. Else untouched."""
    height, width = images.shape[-2:]
    if (height, width) == tuple(size):
        return images
    least = [int(side / crop_ratio) for side in size]
    if height * least[1] > width * least[0]:
        resized = [least[1] * height // width, least[1]]
    else:
        resized = [least[0], least[0] * width // height]
    images = v2.functional.resize(images, resized, interpolation=InterpolationMode(interpolation), antialias=True)
    return v2.functional.center_crop(images, list(size))


def covering_box(source: Size, size: Size) -> NDArray[np.float64]:
    """Top, left, height, width of the largest part in the middle that has the aspect ratio of ``size``."""
    factor = min(source[0] / size[0], source[1] / size[1])
    tall, wide = size[0] * factor, size[1] * factor
    return np.array([(source[0] - tall) / 2, (source[1] - wide) / 2, tall, wide])
