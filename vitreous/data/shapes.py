"""Shapes: an unlimited, procedurally generated dataset of small scenes for tests, experiments and teaching.

A scene holds a *subject*, whose kind is the class, behind smaller objects, on a cluttered background. Its ground truth
is exact: kinds, colors, count, boxes, instance masks, a caption, the occluded pixels, and which two distant halves are
one object. Scene ``i`` of seed ``s`` is a pure function of (s, i), without files or state.

``drawing.py`` draws a whole batch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.drawing import (
    DIRECTIONS,
    FIRST_HALF,
    KINDS,
    LEVELS,
    SECOND_HALF,
    TEXTURES,
    WHOLE,
    Canvas,
    background,
    palette,
)
from vitreous.spec import Size, pair

COLORS = {
    "red": (214, 52, 48),
    "orange": (240, 140, 30),
    "yellow": (238, 214, 60),
    "green": (60, 170, 75),
    "cyan": (70, 200, 210),
    "blue": (50, 90, 205),
    "purple": (140, 70, 180),
    "white": (235, 235, 235),
}
OCCLUDER = 255  # id in the instance map

CLUTTER = 6  # small background marks, which are not objects
CHUNK = 256  # scenes drawn at a time, to fit the CPU cache


@dataclass(frozen=True)
class Shapes:
    """A generator of scenes by index: ``batch(indices)`` draws many at once, ``shapes[i]`` draws one.

    Args:
        length: Number of scenes.
        image_size: Size of the images, at least 16 pixels a side.
        seed: Seed of all scenes.
        max_objects: Largest number of objects in a scene, 1 to 8.
        split_rate: Share of objects that are cut into two separate halves.
        split_distance: Distance between such halves, as a share of the shorter image side.
        occlusion: Area of a disk over the subject's center, as a share of the area of the disk around the subject.

    >>> scenes = vt.Shapes(image_size=32, seed=1).batch(range(100))
    >>> scenes.images.shape, scenes.labels.shape, scenes.captions[0]
    """

    length: int = 50_000
    image_size: Size | int = (64, 64)
    seed: int = 0
    max_objects: int = 4
    split_rate: float = 0.0
    split_distance: float = 0.4
    occlusion: float = 0.0

    classes = KINDS

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair(self.image_size, "image_size"))
        if min(self.size) < 16:
            raise ValueError(f"image_size must be at least 16 pixels a side, got {self.image_size}")
        if not 1 <= self.max_objects <= 8:
            raise ValueError(f"max_objects must lie between 1 and 8, got {self.max_objects}")
        for name in ("split_rate", "occlusion"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")

    @property
    def size(self) -> Size:
        return pair(self.image_size)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Scenes:
        if not -self.length <= index < self.length:
            raise IndexError(f"scene {index} is out of range: there are {self.length} scenes")
        return self.batch([index % self.length])

    def batch(self, indices: Sequence[int] | NDArray[np.integer]) -> Scenes:
        """Draw the scenes of these indices."""
        index = np.asarray(indices, dtype=np.int64)
        if not index.size or index.min() < 0 or index.max() >= self.length:
            raise IndexError(f"a batch takes one or more indices from 0 to {self.length - 1}, got {indices}")
        chunks = [index[start : start + CHUNK].astype(np.uint64) for start in range(0, len(index), CHUNK)]
        return concatenate([draw(self, compose(self, chunk)) for chunk in chunks])


@dataclass(frozen=True)
class Composition:
    """Attributes of all objects before drawing: (b, m) for b scenes of up to m objects, the subject first."""

    kind: NDArray[np.int64]
    color: NDArray[np.int64]
    exists: NDArray[np.bool_]
    center: NDArray[np.int64]  # (b, m, 2): y, x
    radius: NDArray[np.float32]
    angle: NDArray[np.int64]
    texture: NDArray[np.int64]
    split: NDArray[np.bool_]
    depth: NDArray[np.int64]  # drawing order
    draws: NDArray[np.float32]  # (b, …) random numbers for the background


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes with their ground truth."""

    images: NDArray[np.uint8]  # (b, 3, y, x)
    instances: NDArray[np.uint8]  # (b, y, x): 0 background, i + 1 the visible part of object i, 255 an occluder
    composition: Composition
    drawn: NDArray[np.int64]  # (b, m): pixels of each object before occlusion

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class indices (b,): the kind of the subject, the largest object."""
        return self.composition.kind[:, 0]

    @property
    def kinds(self) -> NDArray[np.int64]:
        """Kind of each object (b, m); −1 for none."""
        return np.where(self.composition.exists, self.composition.kind, -1)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Kinds that occur in each scene (b, kinds), a multi-label target."""
        shown = self.kinds[..., None] == np.arange(len(KINDS))
        return shown.any(axis=1)

    @property
    def count(self) -> NDArray[np.int64]:
        """Number of objects in each scene (b,); two halves count as one."""
        return self.composition.exists.sum(axis=1)

    @property
    def split(self) -> NDArray[np.bool_]:
        return self.composition.split & self.composition.exists

    @cached_property
    def masks(self) -> NDArray[np.bool_]:
        """Visible pixels of each object (b, m, y, x)."""
        ids = np.arange(1, self.composition.kind.shape[1] + 1, dtype=np.uint8)
        return self.instances[:, None] == ids[:, None, None]

    @property
    def occluder(self) -> NDArray[np.bool_]:
        return self.instances == OCCLUDER

    @property
    def visible(self) -> NDArray[np.float64]:
        """Visible share of each object (b, m)."""
        return self.masks.sum(axis=(2, 3)) / np.maximum(self.drawn, 1)

    @cached_property
    def boxes(self) -> NDArray[np.int64]:
        """Boxes (b, m, 4) as y0, x0, y1, x1 around the visible pixels, end excluded; zeros if nothing is visible."""
        sides = []
        for axis in (3, 2):
            line = np.any(self.masks, axis=axis, keepdims=False)
            first, last = line.argmax(-1), line.shape[-1] - line[..., ::-1].argmax(-1)
            seen = line.any(-1)
            sides.append((np.where(seen, first, 0), np.where(seen, last, 0)))
        (y0, y1), (x0, x1) = sides
        return np.stack([y0, x0, y1, x1], axis=-1)

    @property
    def captions(self) -> list[str]:
        return [caption(self.composition, scene) for scene in range(len(self.images))]


def concatenate(parts: list[Scenes]) -> Scenes:
    """Concatenate batches of scenes."""
    if len(parts) == 1:
        return parts[0]
    compositions = [part.composition for part in parts]
    composition = Composition(
        **{f.name: np.concatenate([getattr(c, f.name) for c in compositions]) for f in fields(Composition)}
    )
    arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "instances", "drawn"))
    images, instances, drawn = arrays
    return Scenes(images, instances, composition, drawn)


def caption(composition: Composition, scene: int) -> str:
    """Describe the subject's group relative to the largest other group: "a red ring left of two blue stars"."""
    groups: dict[tuple[int, int], list[int]] = {}
    for item in np.flatnonzero(composition.exists[scene]):
        groups.setdefault((int(composition.color[scene, item]), int(composition.kind[scene, item])), []).append(
            int(item)
        )
    (first, members), *others = groups.items()
    text = phrase(*first, len(members))
    if not others:
        return text
    second, other_members = max(others, key=lambda group: len(group[1]))
    here, there = (composition.center[scene, items].mean(axis=0) for items in (members, other_members))
    dy, dx = there - here
    if abs(dx) >= abs(dy):
        relation = "left of" if dx > 0 else "right of"
    else:
        relation = "above" if dy > 0 else "below"
    return f"{text} {relation} {phrase(*second, len(other_members))}"


def phrase(color: int, kind: int, number: int) -> str:
    plurals = {"cross": "crosses", "hourglass": "hourglasses"}
    color_name, name = list(COLORS)[color], KINDS[kind]
    if number == 1:
        return f"{'an' if color_name[0] in 'aeiou' else 'a'} {color_name} {name}"
    words = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
    return f"{words[number]} {color_name} {plurals.get(name, name + 's')}"


def random_numbers(seed: int, index: NDArray[np.uint64], count: int) -> NDArray[np.float32]:
    """Draw (b, count) numbers in [0, 1), a pure function of seed and index (SplitMix64)."""
    with np.errstate(over="ignore"):
        start = np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95) + index[:, None] * np.uint64(4096)
        z: Any = (start + np.arange(1, count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def compose(shapes: Shapes, index: NDArray[np.uint64]) -> Composition:
    b, m = len(index), shapes.max_objects
    draws = random_numbers(shapes.seed, index, 10 * m + 8 * CLUTTER + 24)
    per_object, draws = draws[:, : 10 * m].reshape(b, m, 10), draws[:, 10 * m :]
    unit = min(shapes.size) / 64
    is_subject = np.arange(m) == 0
    number = 1 + (draws[:, :1] * m).astype(np.int64)
    radius = np.where(is_subject, 12 + 6 * per_object[..., 2], 4.5 + 2.5 * per_object[..., 2]) * unit
    margin = np.where(is_subject, 0.28, 0.12)[:, None]
    position = margin + (1 - 2 * margin) * per_object[..., 3:5]
    return Composition(
        kind=(per_object[..., 0] * len(KINDS)).astype(np.int64),
        color=(per_object[..., 1] * len(COLORS)).astype(np.int64),
        exists=np.arange(m) < number,
        center=(position * np.array(shapes.size)).astype(np.int64),
        radius=radius.astype(np.float32),
        angle=((per_object[..., 5] - 0.5) * (DIRECTIONS // 4)).astype(np.int64) % DIRECTIONS,
        texture=(per_object[..., 6] * TEXTURES).astype(np.int64),
        split=per_object[..., 7] < shapes.split_rate,
        depth=np.where(is_subject, -1.0, per_object[..., 8]).argsort(axis=1),  # the subject lies at the back
        draws=draws,
    )


def draw(shapes: Shapes, composition: Composition) -> Scenes:
    """Draw clutter, objects from back to front, and the occluder; then map shades to colors."""
    b, m = composition.kind.shape
    canvas = Canvas(shapes.size, b, shade=background(shapes.size, composition.draws))
    draw_clutter(canvas, composition.draws[:, 24:])
    drawn = np.zeros((b, m), dtype=np.int64)
    for layer in range(m):
        chosen = composition.depth[:, layer]
        scenes = np.flatnonzero(composition.exists[np.arange(b), chosen])
        draw_objects(canvas, shapes, composition, scenes, chosen[scenes], drawn)
    if shapes.occlusion:
        radius = composition.radius[:, 0] * np.float32(np.sqrt(shapes.occlusion))
        whole = np.zeros(b, dtype=np.int64)
        canvas.stamp(
            np.arange(b), whole, WHOLE, composition.center[:, 0], radius, whole, np.full(b, OCCLUDER), texture=whole
        )
    colors = np.array(list(COLORS.values()), dtype=np.float32)[composition.color]
    instances = canvas.ids()
    seen = count_ids(instances, m + 1)[:, 1:] > 0
    seen[:, 0] = True  # the subject remains the label even if an occluder hides all of it
    composition = replace(composition, exists=composition.exists & seen)  # drop fully covered objects
    return Scenes(canvas.color(palette(colors, composition.draws)), instances, composition, drawn)


def count_ids(instances: NDArray[np.uint8], number: int) -> NDArray[np.int64]:
    """Count the pixels of each id below ``number`` in each scene: (b, number)."""
    keys = np.minimum(instances, number).astype(np.int64) + np.arange(len(instances))[:, None, None] * (number + 1)
    return np.bincount(keys.reshape(-1), minlength=len(instances) * (number + 1)).reshape(-1, number + 1)[:, :number]


def draw_objects(
    canvas: Canvas,
    shapes: Shapes,
    composition: Composition,
    scenes: NDArray[np.int64],
    items: NDArray[np.int64],
    drawn: NDArray[np.int64],
) -> None:
    """Draw one object in each of the scenes: whole, or as two halves moved apart across the cut."""
    split = composition.split[scenes, items]
    for part, chosen in ((WHOLE, ~split), (FIRST_HALF, split), (SECOND_HALF, split)):
        scene, item = scenes[chosen], items[chosen]
        if not len(scene):
            continue
        angle, center = composition.angle[scene, item], composition.center[scene, item]
        if part != WHOLE:
            # The cut runs along the object's axis, and the halves move to opposite sides of it.
            across = (angle + DIRECTIONS // 4) * (2 * np.pi / DIRECTIONS)
            away = shapes.split_distance * min(shapes.size) / 2 * (1 if part == FIRST_HALF else -1)
            moved = center + np.stack([np.sin(across), np.cos(across)], -1) * away
            center = np.clip(np.round(moved), 0, np.array(shapes.size) - 1).astype(np.int64)
        drawn[scene, item] += canvas.stamp(
            scene,
            composition.kind[scene, item],
            part,
            center,
            composition.radius[scene, item],
            angle,
            item + 1,
            texture=composition.texture[scene, item],
        )


def draw_clutter(canvas: Canvas, draws: NDArray[np.float32]) -> None:
    """Draw small marks without an id, which only shade the background."""
    scenes = np.arange(len(draws))
    for mark in range(CLUTTER):
        own = draws[:, 8 * mark : 8 * mark + 8]
        place, (size, kind, angle, shade) = own[:, :2], own.T[2:6]
        canvas.stamp(
            scenes,
            (kind * len(KINDS)).astype(np.int64),
            WHOLE,
            (place * np.array(canvas.size)).astype(np.int64),
            (1.5 + 1.5 * size) * np.float32(min(canvas.size) / 64),
            (angle * DIRECTIONS).astype(np.int64),
            np.zeros(len(draws), dtype=np.int64),
            shade=(shade * LEVELS).astype(np.uint8),
        )
