"""Shapes as a training dataset: scenes drawn on demand, with targets of every type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.base import ArrayDataset, Indices, one_hot
from vitreous.data.drawing import KINDS
from vitreous.data.shapes import OCCLUDER, Scenes, Shapes, compose
from vitreous.data.splits import Splits
from vitreous.samples import IGNORED, Boxes, Classes, Masks, MultiLabels, Targets, Texts
from vitreous.spec import Size

VALID_SEED, TEST_SEED = 1_000_001, 1_000_002  # fixed, so that scores compare between runs of different seeds


class ShapesDataset(ArrayDataset):
    """The scenes of ``shapes`` (all, or those with the indices ``chosen``) with targets of type ``target``."""

    num_channels = 3

    def __init__(self, shapes: Shapes, chosen: Indices | None = None, *, target: type[Targets] = Classes) -> None:
        if target not in TARGETS:
            raise ValueError(
                f"Shapes does not provide {target.description}; it provides "
                f"{', '.join(kind.description for kind in TARGETS)}"
            )
        self.shapes, self.target = shapes, target
        self.chosen = np.arange(len(shapes)) if chosen is None else chosen
        self.classes = ("background", *KINDS) if target is Masks else tuple(KINDS)
        self.image_size = shapes.size

    def __len__(self) -> int:
        return len(self.chosen)

    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        return self.shapes.batch(self.chosen[indices]).images

    def targets(self, indices: Indices) -> Targets:
        if self.target is Classes:  # known without drawing the scene
            scenes = compose(self.shapes, self.chosen[indices].astype(np.uint64))
            return Classes(torch.from_numpy(one_hot(scenes.kind[:, 0], len(self.classes))))
        return TARGETS[self.target](self.shapes.batch(self.chosen[indices]))

    def samples(self, indices: Indices) -> tuple[NDArray[np.uint8], Targets]:
        scenes = self.shapes.batch(self.chosen[indices])
        return scenes.images, TARGETS[self.target](scenes)

    def subset(self, indices: Indices) -> ShapesDataset:
        return ShapesDataset(self.shapes, self.chosen[indices], target=self.target)

    def location(self, index: int) -> str:
        return f"scene {self.chosen[index]} of seed {self.shapes.seed}"


def subject(scenes: Scenes) -> Classes:
    return Classes(torch.from_numpy(one_hot(scenes.labels, len(KINDS))))


def kinds(scenes: Scenes) -> MultiLabels:
    return MultiLabels(torch.from_numpy(scenes.present.astype(np.float32)))


def masks(scenes: Scenes) -> Masks:
    """Return masks: 0 for the background, 1 + k for an object of kind k; occluders are ignored."""
    by_id = np.zeros((len(scenes.images), 256), dtype=np.uint8)
    by_id[:, 1 : 1 + scenes.kinds.shape[1]] = scenes.kinds + 1
    by_id[:, OCCLUDER] = IGNORED
    rows = np.arange(len(by_id))[:, None, None]
    return Masks(torch.from_numpy(by_id[rows, scenes.instances]))


def boxes(scenes: Scenes) -> Boxes:
    """Return boxes around the visible pixels of each object."""
    tall = scenes.boxes[..., 2] > scenes.boxes[..., 0]
    seen = tall & (scenes.kinds >= 0)
    around = torch.from_numpy(scenes.boxes[..., [1, 0, 3, 2]].astype(np.float32))
    return Boxes(
        tuple(around[scene][torch.from_numpy(keep)] for scene, keep in enumerate(seen)),
        tuple(torch.from_numpy(own[keep]) for own, keep in zip(scenes.kinds, seen, strict=True)),
    )


def captions(scenes: Scenes) -> Texts:
    return Texts(tuple(scenes.captions))


TARGETS: dict[type[Targets], Callable[[Scenes], Targets]] = {
    Classes: subject,
    MultiLabels: kinds,
    Masks: masks,
    Boxes: boxes,
    Texts: captions,
}


def open_shapes(seed: int = 0, image_size: Size | None = None, target: type[Targets] | None = None) -> Splits:
    """Return 50,000 training, 2,000 validation and 10,000 test scenes, by default 64×64 with class targets."""
    train, valid, test = (
        ShapesDataset(Shapes(length, image_size or (64, 64), seed=own), target=target or Classes)
        for length, own in ((50_000, seed), (2_000, VALID_SEED), (10_000, TEST_SEED))
    )
    return Splits(train, valid, test)
