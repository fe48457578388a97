"""From a dataset to batches. Batch s of a run is a pure function of (seed, s): no state, so that resuming is exact."""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from vitreous.data.augment import Augment, Draws, augment_pixels, evaluation_pixels, fill_color, normalize
from vitreous.data.base import ArrayDataset, Dataset, FileDataset, Indices
from vitreous.data.crops import training_views
from vitreous.data.image_files import BadImage
from vitreous.data.mixing import kinds_in_use, whole_pairs
from vitreous.data.transforms import mode_of
from vitreous.data.view import View, evaluation_view, seen_through
from vitreous.samples import Batch, Classes, Inputs, Targets
from vitreous.spec import Preprocess, Size

AHEAD = 2  # batches prepared while the model computes
TRIED_INSTEAD = 16  # other images, where none of a share can be read


class Loader:
    """Training batches: ``loader.batch(step)``, or a stream of them prepared ahead.

    ``rows`` are this process's rows of every batch of ``batch_size``. An epoch leaves out the last images that do
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
        augment.check_for(data.target, several_views=data.num_views > 1)
        self.data, self.preprocess, self.augment = data, preprocess, augment
        self.batch_size = min(batch_size, len(data)) if rows is None else batch_size
        if self.batch_size > len(data):
            raise ValueError(f"a batch of {batch_size} is larger than the training set of {len(data)} images")
        self.rows = rows or slice(0, self.batch_size)
        #: What is opened: the own rows, and those that they are mixed with.
        self.opened_rows = whole_pairs(self.rows, self.batch_size) if kinds_in_use(augment) else self.rows
        self.seed, self.workers = seed, workers or os.cpu_count() or 1
        self.steps_per_epoch = len(data) // self.batch_size
        #: Images that could not be read, with the reason; others stood in for them.
        self.unreadable: dict[str, str] = {}
        self.known_order: tuple[int, Indices] | None = None

    def batch(self, step: int) -> Batch:
        epoch, position = divmod(step, self.steps_per_epoch)
        start, rows = position * self.batch_size, self.opened_rows
        order = self.order(epoch)
        indices = order[start + rows.start : start + rows.stop]
        draws = Draws.sample(self.seed, epoch, position, batch=self.batch_size, rows=rows)
        if isinstance(self.data, ArrayDataset):
            shown = self.from_arrays(self.data, indices, draws)
        else:
            others = order[np.arange(start + rows.stop, start + rows.stop + TRIED_INSTEAD) % len(order)]
            shown = self.from_files(indices, draws, others)
        if shown.inputs.images.ndim == 5:  # several views of a scene: nothing is augmented
            return replace(shown, inputs=replace(shown.inputs, images=normalize(shown.images, self.preprocess)))
        images, targets = augment_pixels(
            shown.images, shown.targets, self.augment, preprocess=self.preprocess, draws=draws
        )
        mixed = Batch(replace(shown.inputs, images=images), targets, shown.views)
        return mixed.take(slice(self.rows.start - rows.start, self.rows.stop - rows.start))

    def order(self, epoch: int) -> Indices:
        if self.known_order is None or self.known_order[0] != epoch:
            self.known_order = (epoch, self.data.order(self.seed, epoch))
        return self.known_order[1]

    def from_arrays(self, data: ArrayDataset, indices: Indices, draws: Draws) -> Batch:
        pixels, targets = data.samples(indices)
        views = training_views(self.augment, data.image_size, self.preprocess.image_size, draws)
        images = seen_through(torch.from_numpy(pixels), views, fill_color(self.preprocess))
        return Batch(Inputs(images), targets.through(views), tuple(views))

    def from_files(self, indices: Indices, draws: Draws, others: Indices) -> Batch:
        """Crops of these images; where one cannot be read, another of the batch stands in for it, or one of others."""
        opened = list(self.pool().map(self.open, indices, range(len(indices)), [draws] * len(indices)))
        readable = [item for item in opened if item is not None]
        if not readable:
            found = (self.open(index, 0, draws) for index in others)
            readable = [item for item in found if item is not None][:1]
        if not readable:
            raise ValueError(f"none of {len(indices)} images could be read: {first_of(self.unreadable)}")
        stand_ins = itertools.cycle(readable)
        return collate([next(stand_ins) if item is None else item for item in opened])

    def open(self, index: int, row: int, draws: Draws) -> Batch | None:
        assert isinstance(self.data, FileDataset)
        own = draws.row(row)

        def view(source: Size) -> View:
            return training_views(self.augment, source, self.preprocess.image_size, own)[0]

        try:
            return opened(self.data, int(index), view, self.preprocess)
        except BadImage as error:
            self.unreadable[self.data.where(int(index))] = error.reason
            return None

    @functools.cache  # noqa: B019 - a loader lives as long as its run
    def pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, thread_name_prefix="images")

    def stream(self, start: int, stop: int) -> Iterator[Batch]:
        """Batches ``start`` to ``stop``, some prepared ahead where opening them takes time."""
        steps = range(start, stop)
        return map(self.batch, steps) if isinstance(self.data, ArrayDataset) else ahead(self.batch, steps)


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
    """Every image once, in order, as the model's spec prepares it. Unreadable ones are left out and counted."""

    def __init__(self, data: Dataset, preprocess: Preprocess, *, batch_size: int = 256, workers: int = 0) -> None:
        self.data, self.preprocess, self.batch_size = data, preprocess, batch_size
        self.workers = workers or os.cpu_count() or 1
        self.unreadable: dict[str, str] = {}

    def __iter__(self) -> Iterator[tuple[Indices, Batch]]:
        return self.part(np.arange(len(self.data)))

    def part(self, indices: Indices, *, skip_empty: bool = True) -> Iterator[tuple[Indices, Batch]]:
        """Batches of these images, with the positions in ``indices`` of those that could be read.

        Where none of a batch could, it is skipped; processes that must run the model equally often ask for a blank
        image instead, which stands at no position and is not counted.
        """
        starts = range(0, len(indices), self.batch_size)
        parts = [np.arange(start, min(start + self.batch_size, len(indices))) for start in starts]
        if isinstance(self.data, ArrayDataset):
            data = self.data
            return ((rows, self.from_arrays(data, indices[rows])) for rows in parts)
        return self.from_files(parts, indices, skip_empty)

    def from_arrays(self, data: ArrayDataset, indices: Indices) -> Batch:
        pixels, targets = data.samples(indices)
        views = [evaluation_view(data.image_size, self.preprocess)] * len(indices)
        images = evaluation_pixels(torch.from_numpy(pixels), self.preprocess)
        return Batch(Inputs(images), targets.through(views), tuple(views))

    def from_files(self, parts: list[Indices], indices: Indices, skip_empty: bool) -> Iterator[tuple[Indices, Batch]]:
        with ThreadPoolExecutor(self.workers, thread_name_prefix="images") as pool:
            for rows in parts:
                found = list(pool.map(self.open, indices[rows]))
                readable = [item for item in found if item is not None]
                if readable:
                    batch = collate(readable)
                    images = normalize(batch.images, self.preprocess)
                    kept = rows[[item is not None for item in found]]
                    yield kept, replace(batch, inputs=replace(batch.inputs, images=images))
                elif not skip_empty:
                    yield rows[:0], self.blank(int(indices[rows[0]]))

    def blank(self, index: int) -> Batch:
        """One image without content, of the form that this one would have."""
        several = (self.data.num_views,) if self.data.num_views > 1 else ()
        images = torch.zeros(1, *several, self.preprocess.num_channels, *self.preprocess.image_size)
        cameras, targets = self.data.cameras(index), Classes(torch.zeros(1, len(self.data.classes)))
        return Batch(Inputs(images, cameras=None if cameras is None else torch.from_numpy(cameras)[None]), targets)

    def open(self, index: int) -> Batch | None:
        assert isinstance(self.data, FileDataset)
        try:
            return opened(self.data, int(index), partial(evaluation_view, preprocess=self.preprocess), self.preprocess)
        except BadImage as error:
            self.unreadable[self.data.where(int(index))] = error.reason
            return None


def opened(data: FileDataset, index: int, view: Callable[[Size], View], preprocess: Preprocess) -> Batch:
    """One image, or the views of one scene, as a batch of one: bytes, and the targets moved with them."""
    found, mode = data.image(index), mode_of(preprocess)
    images = [image.convert(mode) for image in (found if isinstance(found, tuple) else (found,))]
    views = [view((image.height, image.width)) for image in images]
    pixels = torch.stack([own.image(image, fill_color(preprocess)) for own, image in zip(views, images, strict=True)])
    targets, size = data.targets(np.array([index])), views[0].source
    if targets.geometric:
        try:
            targets.check([size], len(data.classes))
        except ValueError as error:
            raise ValueError(f"{data.where(index)}: {error}") from None
    cameras = data.cameras(index)
    if cameras is not None:
        matrices = np.stack([own.matrix for own in views])
        cameras = (matrices @ cameras).astype(np.float32)
    several = isinstance(found, tuple)
    inputs = Inputs(
        pixels[None] if several else pixels, cameras=None if cameras is None else torch.from_numpy(cameras)[None]
    )
    return Batch(inputs, targets if several else targets.through(views), tuple(views))


def collate(parts: list[Batch]) -> Batch:
    """Batches of one, joined."""
    images, cameras = torch.cat([part.images for part in parts]), [part.inputs.cameras for part in parts]
    known = [camera for camera in cameras if camera is not None]
    inputs = Inputs(images, cameras=torch.cat(known) if len(known) == len(parts) else None)
    kind: type[Targets] = type(parts[0].targets)
    views = tuple(view for part in parts for view in part.views)
    return Batch(inputs, kind.cat([part.targets for part in parts]), views)


def first_of(unreadable: dict[str, str]) -> str:
    where, reason = next(iter(unreadable.items()))
    return f"{where} ({reason})"
