"""Draw many small scenes at once with numpy.

A shape is an outline in polar coordinates, ``inner(φ) < distance < outer(φ)``. Centers are whole pixels, so that the
distance and direction of each pixel of a window can be precomputed, and a shape costs one lookup per pixel.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vitreous.spec import Size

KINDS = ("disk", "square", "triangle", "star", "ring", "cross", "heart", "moon", "hourglass", "bar")

DIRECTIONS = 1024  # an outline's resolution
LEVELS = 32  # shades between an object's dark and light color
TEXTURES = 5
WHOLE, FIRST_HALF, SECOND_HALF = 0, 1, 2


class Canvas:
    """Object id and shade (uint8 each) of every pixel, with a margin so that stamps stay in bounds."""

    def __init__(self, size: Size, num_scenes: int, shade: NDArray[np.uint8]) -> None:
        self.size = size
        self.margin = int(24 * min(size) / 64) + 2
        self.shape = (num_scenes, size[0] + 2 * self.margin, size[1] + 2 * self.margin)
        self.id = np.zeros(self.shape, dtype=np.uint8)
        self.shade = np.zeros(self.shape, dtype=np.uint8)
        self.without_margin(self.shade)[:] = shade

    def without_margin(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        edge = self.margin
        return array[:, edge:-edge, edge:-edge]

    def ids(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.without_margin(self.id))

    def stamp(
        self,
        scene: NDArray[np.int64],
        kind: NDArray[np.int64],
        part: int,
        center: NDArray[np.int64],
        radius: NDArray[np.float32],
        angle: NDArray[np.int64],
        owner: NDArray[np.int64],
        *,
        texture: NDArray[np.int64] | None = None,
        shade: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.int64]:
        """Draw one shape in each scene; return the number of pixels it covers within each image."""
        reach = min(self.margin - 1, int(np.ceil(radius.max() * MAX_REACH)))
        distance, direction, rows, columns = window(reach)
        turned = (direction - angle[:, None].astype(np.int16)) & np.int16(DIRECTIONS - 1)
        row = (kind * 3 + part)[:, None] * DIRECTIONS + turned
        scaled = distance / radius[:, None]
        inside = scaled < OUTER.take(row)
        inside &= scaled >= INNER.take(row)
        corner = scene * (self.shape[1] * self.shape[2]) + (center[:, 0] + self.margin) * self.shape[2]
        place = (corner + center[:, 1] + self.margin)[:, None] + (rows * self.shape[2] + columns)
        which, pixel = np.nonzero(inside)
        place = place[which, pixel]
        self.id.reshape(-1)[place] = owner[which]
        if texture is not None:
            values = texture_shade(texture[which], rows[pixel], columns[pixel], angle[which], radius[which])
        else:
            assert shade is not None
            values = shade[which]
        self.shade.reshape(-1)[place] = values
        y, x = rows[pixel] + center[which, 0], columns[pixel] + center[which, 1]
        within = (y >= 0) & (y < self.size[0]) & (x >= 0) & (x < self.size[1])
        return np.bincount(which[within], minlength=len(scene))

    def color(self, palette: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Look up each (id, shade) in its scene's palette: images (b, 3, y, x)."""
        entries = palette.shape[1]
        key = self.without_margin(self.id).astype(np.int32)
        np.minimum(key, entries // LEVELS - 1, out=key)
        key *= LEVELS
        key += self.without_margin(self.shade)
        key += (np.arange(len(key), dtype=np.int32) * entries)[:, None, None]
        packed = palette.reshape(-1).take(key)
        return np.ascontiguousarray(packed.view(np.uint8).reshape(*key.shape, 4)[..., :3].transpose(0, 3, 1, 2))


def texture_shade(
    texture: NDArray[np.int64],
    y: NDArray[np.int32],
    x: NDArray[np.int32],
    angle: NDArray[np.int64],
    radius: NDArray[np.float32],
) -> NDArray[np.uint8]:
    """Look up the shade of each pixel in an 8×8 tile per texture, aligned with the object's axes."""
    cos, sin = COS[angle], SIN[angle]
    step = np.float32(10) / radius
    # adding 64 keeps the values positive, where the cast rounds down
    along = ((x * cos + y * sin) * step + 64).astype(np.int32) & 7
    across = ((y * cos - x * sin) * step + 64).astype(np.int32) & 7
    return TILES[texture, across, along]


def palette(objects: NDArray[np.float32], draws: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Pack colors (b, ids · LEVELS): background, objects (b, m, rgb) and occluder, each from dark to light."""
    b, m, _ = objects.shape
    ends = np.empty((b, m + 2, 2, 3), dtype=np.float32)
    tint = draws[:, :6].reshape(b, 2, 3)
    ends[:, 0] = 15 + 60 * tint + 45 * tint.mean(axis=2, keepdims=True)
    ends[:, 1:-1, 1] = objects
    ends[:, 1:-1, 0] = 0.5 * objects
    ends[:, -1] = 128
    share = np.linspace(0, 1, LEVELS, dtype=np.float32)[:, None]
    shades = ends[:, :, None, 0] * (1 - share) + ends[:, :, None, 1] * share
    packed = np.zeros((b, m + 2, LEVELS, 4), dtype=np.uint8)
    packed[..., :3] = shades
    return packed.view(np.uint32).reshape(b, -1)


def background(size: Size, draws: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Cut a random, randomly mirrored crop from one large sheet of noise for each scene."""
    sheet = noise_sheet(size)
    max_corner = np.array(sheet.shape) - np.array(size)
    corner = (draws[:, 6:8] * (max_corner + 1)).astype(np.int64)
    mirror = (draws[:, 8] * 4).astype(np.int64)
    out = np.empty((len(draws), *size), dtype=np.uint8)
    for scene, ((y, x), turn) in enumerate(zip(corner, mirror, strict=True)):
        piece = sheet[y : y + size[0], x : x + size[1]]
        out[scene] = piece[:: -1 if turn & 1 else 1, :: -1 if turn & 2 else 1]
    return out


@lru_cache(maxsize=8)
def noise_sheet(size: Size) -> NDArray[np.uint8]:
    """Generate noise with amplitude proportional to wavelength, over sixteen times a scene's area."""
    shape = (4 * size[0], 4 * size[1])
    frequency = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1]))
    spectrum = np.fft.rfft2(np.random.default_rng(7).standard_normal(shape)) / (frequency + 0.5 / max(size))
    waves = np.fft.irfft2(spectrum, s=shape)
    waves = (waves - waves.mean()) / waves.std()
    return np.clip((waves * 0.2 + 0.5) * LEVELS, 0, LEVELS - 1).astype(np.uint8)


@lru_cache(maxsize=64)
def window(reach: int) -> tuple[NDArray[np.float32], NDArray[np.int16], NDArray[np.int32], NDArray[np.int32]]:
    """Compute distance, direction and (y, x) offsets of every pixel within ``reach`` of a center."""
    y, x = (axis.reshape(-1).astype(np.int32) for axis in np.mgrid[-reach : reach + 1, -reach : reach + 1])
    direction = np.round(np.arctan2(y, x) * (DIRECTIONS / (2 * np.pi))).astype(np.int16) % DIRECTIONS
    return np.hypot(y, x).astype(np.float32), direction.astype(np.int16), y, x


def outlines() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute outer and inner radius (kinds · 3, directions) of each shape: whole, first half, second half."""
    phi = np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)
    cos, sin = np.maximum(np.abs(np.cos(phi)), 1e-6), np.maximum(np.abs(np.sin(phi)), 1e-6)
    third, fifth = phi % (2 * np.pi / 3) - np.pi / 3, np.abs(phi % (2 * np.pi / 5) - np.pi / 5)
    toward_hole = 0.45 * np.cos(phi) + np.sqrt(0.72**2 - (0.45 * np.sin(phi)) ** 2)
    tip, notch = 1.25, 0.5
    edge = np.pi / 5
    star = tip * notch * np.sin(edge) / (tip * np.sin(edge - fifth) + notch * np.sin(fifth))
    outer = {
        "disk": np.full(DIRECTIONS, 0.95),
        "square": 0.85 / np.maximum(cos, sin),
        "triangle": 0.6 / np.cos(third),
        "star": star,
        "ring": np.full(DIRECTIONS, 1.05),
        "cross": np.maximum(np.minimum(1.1 / cos, 0.34 / sin), np.minimum(0.34 / cos, 1.1 / sin)),
        "heart": heart(phi),
        "moon": np.full(DIRECTIONS, 1.1),
        "hourglass": np.where(cos < 0.75 * sin, np.minimum(1.0 / sin, 1.3), 0.12),
        "bar": np.minimum(1.2 / cos, 0.36 / sin),
    }
    inner = {"ring": np.full(DIRECTIONS, 0.6), "moon": np.minimum(toward_hole * 1.05, 1.1)}
    ends = np.stack([outer[kind] for kind in KINDS])
    starts = np.stack([inner.get(kind, np.zeros(DIRECTIONS)) for kind in KINDS])
    first = phi < np.pi
    halves = np.stack([ends, np.where(first, ends, 0), np.where(first, 0, ends)], axis=1)
    return halves.reshape(-1, DIRECTIONS).astype(np.float32), np.repeat(starts, 3, axis=0).astype(np.float32)


def heart(phi: NDArray[np.floating]) -> NDArray[np.floating]:
    """Compute the radius of the standard heart curve in polar coordinates."""
    t = np.linspace(0, 2 * np.pi, 4000)
    x = 16 * np.sin(t) ** 3 / 14
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t) + 2) / 14
    direction, distance = np.arctan2(y, x) % (2 * np.pi), np.hypot(x, y)
    order = direction.argsort()
    return np.interp(phi, direction[order], distance[order], period=2 * np.pi)


def tiles() -> NDArray[np.uint8]:
    """Create 8×8 tiles of shades from 0 to LEVELS − 1: plain, stripes, grid, checks and dots."""
    y, x = np.mgrid[:8, :8]
    light = [np.ones((8, 8)), x < 4, (x % 4 < 2) | (y % 4 < 2), (x < 4) ^ (y < 4), np.hypot(x - 3.5, y - 3.5) > 2.3]
    return np.stack([np.where(pattern, LEVELS - 1, LEVELS // 3) for pattern in light]).astype(np.uint8)


OUTER, INNER = outlines()
MAX_REACH = float(OUTER.max())
TILES = tiles()
COS = np.cos(np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)).astype(np.float32)
SIN = np.sin(np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)).astype(np.float32)
