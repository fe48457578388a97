"""From a dataset to batches. Batch s of a run is a pure function of (seed, s): no state, so that resuming is exact."""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.augment import Augment, Dice, augment_pixels, evaluation_pixels
from vitreous.data.base import Dataset, Indices, Pictures, Pixels
from vitreous.data.crops import cut, cut_picture
from vitreous.data.pictures import BadPicture
from vitreous.data.transforms import MODES, PictureTransform
from vitreous.spec import Batch, Preprocess

AHEAD = 2  # batches prepared while the model computes


class Loader:
    """Training batches: ``loader.batch(step)``, or a stream of them prepared ahead.

    ``rows`` are this process's rows of every batch of ``batch_size``. An epoch leaves out the last pictures that do
    not fill a batch; the next epoch's order is another one.
    """

    def __init__(
        self,
        data: Dataset,
        preprocess: Preprocess,
        augment: Augment,
        *,
        batch_size: int,
        rows: slice | None = None,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        if len(data) < 1:
            raise ValueError("the training set is empty")
        self.data, self.preprocess, self.augment = data, preprocess, augment
        self.batch_size = min(batch_size, len(data)) if rows is None else batch_size
        if self.batch_size > len(data):
            raise ValueError(f"a batch of {batch_size} is larger than the training set of {len(data)} pictures")
        self.rows = rows or slice(0, self.batch_size)
        self.seed, self.workers = seed, workers or os.cpu_count() or 1
        self.steps_per_epoch = len(data) // self.batch_size
        #: Pictures that could not be read, with the reason; others stood in for them.
        self.unreadable: dict[str, str] = {}
        self.known_order: tuple[int, Indices] | None = None

    def batch(self, step: int) -> Batch:
        epoch, position = divmod(step, self.steps_per_epoch)
        indices = self.order(epoch)[position * self.batch_size : (position + 1) * self.batch_size][self.rows]
        dice = Dice.throw(self.seed, epoch, position, batch=self.batch_size, rows=self.rows)
        pixels, used = self.pixels(indices, dice)
        images, targets = torch.from_numpy(pixels), torch.from_numpy(self.data.targets(used))
        return Batch(*augment_pixels(images, targets, self.augment, preprocess=self.preprocess, dice=dice))

    def order(self, epoch: int) -> Indices:
        if self.known_order is None or self.known_order[0] != epoch:
            self.known_order = (epoch, self.data.order(self.seed, epoch))
        return self.known_order[1]

    def pixels(self, indices: Indices, dice: Dice) -> tuple[NDArray[np.uint8], Indices]:
        """Crops of these pictures, and which pictures they are: others stand in for those that cannot be read."""
        size = self.preprocess.image_size
        if isinstance(self.data, Pixels):
            images = torch.from_numpy(self.data.pixels(indices))
            return cut(images, self.augment, size, dice).numpy(), indices
        opened = list(self.pool().map(self.open, indices, range(len(indices)), [dice] * len(indices)))
        readable = [place for place, item in enumerate(opened) if item is not None]
        if not readable:
            raise ValueError(f"none of {len(indices)} pictures could be read: {first_of(self.unreadable)}")
        stand_ins = itertools.cycle(readable)
        places = [next(stand_ins) if item is None else place for place, item in enumerate(opened)]
        shown = [item for item in (opened[place] for place in places) if item is not None]
        return np.stack(shown), indices[places]

    def open(self, index: int, row: int, dice: Dice) -> NDArray[np.uint8] | None:
        assert isinstance(self.data, Pictures)
        try:
            picture = self.data.picture(int(index)).convert(MODES[self.preprocess.num_channels])
        except BadPicture as error:
            self.unreadable[self.data.where(int(index))] = error.reason
            return None
        return cut_picture(picture, self.augment, self.preprocess.image_size, dice.row(row))

    @functools.cache  # noqa: B019 - a loader lives as long as its run
    def pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, thread_name_prefix="pictures")

    def stream(self, start: int, stop: int) -> Iterator[Batch]:
        """Batches ``start`` to ``stop``, some prepared ahead where opening them takes time."""
        steps = range(start, stop)
        return map(self.batch, steps) if isinstance(self.data, Pixels) else ahead(self.batch, steps)


def ahead(make: Callable[[int], Batch], steps: range) -> Iterator[Batch]:
    """``map``, with the next few made in the background; an error in there is raised here."""
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as background:
        waiting = deque(background.submit(make, step) for step in steps[:AHEAD])
        try:
            for step in itertools.chain(steps[AHEAD:], [None] * AHEAD):
                if not waiting:
                    return
                batch = waiting.popleft().result()
                if step is not None:
                    waiting.append(background.submit(make, step))
                yield batch
        finally:
            for future in waiting:
                future.cancel()


class EvaluationLoader:
    """Every picture once, in order, as the model's spec prepares it. Unreadable ones are left out and counted."""

    def __init__(self, data: Dataset, preprocess: Preprocess, *, batch_size: int = 256, workers: int = 0) -> None:
        self.data, self.preprocess, self.batch_size = data, preprocess, batch_size
        self.workers = workers or os.cpu_count() or 1
        self.unreadable: dict[str, str] = {}

    def __iter__(self) -> Iterator[tuple[Indices, Batch]]:
        return self.part(np.arange(len(self.data)))

    def part(self, indices: Indices) -> Iterator[tuple[Indices, Batch]]:
        """Batches of these pictures, with the indices of those that could be read."""
        parts = [indices[start : start + self.batch_size] for start in range(0, len(indices), self.batch_size)]
        if isinstance(self.data, Pixels):
            return map(self.from_pixels, parts)
        return self.from_pictures(parts)

    def from_pixels(self, indices: Indices) -> tuple[Indices, Batch]:
        assert isinstance(self.data, Pixels)
        images = evaluation_pixels(torch.from_numpy(self.data.pixels(indices)), self.preprocess)
        return indices, Batch(images, torch.from_numpy(self.data.targets(indices)))

    def from_pictures(self, parts: list[Indices]) -> Iterator[tuple[Indices, Batch]]:
        prepare = PictureTransform(self.preprocess)
        with ThreadPoolExecutor(self.workers, thread_name_prefix="pictures") as pool:
            for indices in parts:
                opened = list(pool.map(lambda index: self.open(int(index), prepare), indices))
                kept = np.array([item is not None for item in opened])
                if kept.any():
                    images = torch.stack([item for item in opened if item is not None])
                    yield indices[kept], Batch(images, torch.from_numpy(self.data.targets(indices[kept])))

    def open(self, index: int, prepare: PictureTransform) -> Tensor | None:
        assert isinstance(self.data, Pictures)
        try:
            return prepare(self.data.picture(index))
        except BadPicture as error:
            self.unreadable[self.data.where(index)] = error.reason
            return None


def first_of(unreadable: dict[str, str]) -> str:
    where, reason = next(iter(unreadable.items()))
    return f"{where} ({reason})"
