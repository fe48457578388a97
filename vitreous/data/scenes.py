"""Shapes as a dataset to train on: scenes drawn when they are asked for, their class the subject's kind."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Indices, Pixels, one_hot
from vitreous.data.shapes import Shapes, compose
from vitreous.data.splits import Splits
from vitreous.spec import Size

VALID_SEED, TEST_SEED = 1_000_001, 1_000_002  # the same scenes for everybody, whatever the seed of training


class ShapesData(Pixels):
    """Scenes of ``shapes``, all of them or the ``chosen``."""

    num_channels = 3

    def __init__(self, shapes: Shapes, chosen: Indices | None = None) -> None:
        self.shapes = shapes
        self.chosen = np.arange(len(shapes)) if chosen is None else chosen
        self.classes, self.image_size = tuple(shapes.classes), shapes.size

    def __len__(self) -> int:
        return len(self.chosen)

    def pixels(self, indices: Indices) -> NDArray[np.uint8]:
        return self.shapes.batch(self.chosen[indices]).images

    def targets(self, indices: Indices) -> NDArray[np.float32]:
        """Known before anything is drawn."""
        scenes = compose(self.shapes, self.chosen[indices].astype(np.uint64))
        return one_hot(scenes.kind[:, 0], len(self.classes))

    def subset(self, indices: Indices) -> ShapesData:
        return ShapesData(self.shapes, self.chosen[indices])

    def where(self, index: int) -> str:
        return f"scene {self.chosen[index]} of seed {self.shapes.seed}"


def open_shapes(seed: int = 0, image_size: Size | None = None) -> Splits:
    train, valid, test = (
        ShapesData(Shapes(length, image_size or (64, 64), seed=own))
        for length, own in ((50_000, seed), (2_000, VALID_SEED), (10_000, TEST_SEED))
    )
    return Splits(train, valid, test)
