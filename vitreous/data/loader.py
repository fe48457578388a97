"""Data loaders. Batch s of a run is a pure function of (seed, s); without other state, resuming is exact."""

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
from vitreous.data.mixing import active_mixers, pair_aligned_rows
from vitreous.data.transforms import pil_mode
from vitreous.data.view import View, apply_views, evaluation_view
from vitreous.samples import Batch, Classes, Inputs, Targets
from vitreous.spec import Preprocess, Size

PREFETCHED_BATCHES = 2  # batches prepared while the model computes
MAX_SUBSTITUTES = 16  # other images to try if none of this process's rows can be read


class Loader:
    """Training batches by step, with augmentation and prefetching.

    Every epoch is shuffled anew and drops the last incomplete batch. An unreadable image is replaced by another and
    listed in ``unreadable``.

    Args:
        data: The training set.
        preprocess: Image size and normalization of the model.
        augment: Augmentation settings.
        batch_size: Size of the global batch.
        rows: Rows of the global batch that this process loads; None for all of them.
        seed: Seed of order and augmentation.
        workers: Threads that open images; 0 for one per CPU.

    >>> loader = Loader(splits.train, model.spec.preprocess, vt.Augment(), batch_size=256)
    >>> for batch in loader.stream(0, loader.steps_per_epoch): ...
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
        augment.check_target(data.target, several_views=data.num_views > 1)
        self.data, self.preprocess, self.augment = data, preprocess, augment
        self.batch_size = min(batch_size, len(data)) if rows is None else batch_size
        if self.batch_size > len(data):
            raise ValueError(f"a batch of {batch_size} is larger than the training set of {len(data)} images")
        self.rows = rows or slice(0, self.batch_size)
        #: The rows to load: this process's, and those that they are mixed with.
        self.loaded_rows = pair_aligned_rows(self.rows, self.batch_size) if active_mixers(augment) else self.rows
        self.seed, self.workers = seed, workers or os.cpu_count() or 1
        self.steps_per_epoch = len(data) // self.batch_size
        #: Images that could not be read and were replaced by others, with the reason.
        self.unreadable: dict[str, str] = {}
        self.cached_order: tuple[int, Indices] | None = None

    def batch(self, step: int) -> Batch:
        """Return this process's rows of the batch of a step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start, rows = position * self.batch_size, self.loaded_rows
        order = self.order(epoch)
        indices = order[start + rows.start : start + rows.stop]
        draws = Draws.sample(self.seed, epoch, position, batch=self.batch_size, rows=rows)
        if isinstance(self.data, ArrayDataset):
            shown = self.from_arrays(self.data, indices, draws)
        else:
            others = order[np.arange(start + rows.stop, start + rows.stop + MAX_SUBSTITUTES) % len(order)]
            shown = self.from_files(indices, draws, others)
        if shown.inputs.images.ndim == 5:  # several views of a scene: nothing is augmented
            return replace(shown, inputs=replace(shown.inputs, images=normalize(shown.images, self.preprocess)))
        images, targets = augment_pixels(
            shown.images, shown.targets, self.augment, preprocess=self.preprocess, draws=draws
        )
        mixed = Batch(replace(shown.inputs, images=images), targets, shown.views)
        return mixed.take(slice(self.rows.start - rows.start, self.rows.stop - rows.start))

    def order(self, epoch: int) -> Indices:
        if self.cached_order is None or self.cached_order[0] != epoch:
            self.cached_order = (epoch, self.data.order(self.seed, epoch))
        return self.cached_order[1]

    def from_arrays(self, data: ArrayDataset, indices: Indices, draws: Draws) -> Batch:
        pixels, targets = data.samples(indices)
        views = training_views(self.augment, data.image_size, self.preprocess.image_size, draws)
        images = apply_views(torch.from_numpy(pixels), views, fill_color(self.preprocess))
        return Batch(Inputs(images), targets.apply_views(views), tuple(views))

    def from_files(self, indices: Indices, draws: Draws, others: Indices) -> Batch:
        """Load crops of these images; replace an unreadable one by another of the batch, or by one of ``others``."""
        opened = list(self.pool().map(self.open, indices, range(len(indices)), [draws] * len(indices)))
        readable = [item for item in opened if item is not None]
        if not readable:
            found = (self.open(index, 0, draws) for index in others)
            readable = [item for item in found if item is not None][:1]
        if not readable:
            raise ValueError(f"none of {len(indices)} images could be read: {first_unreadable(self.unreadable)}")
        substitutes = itertools.cycle(readable)
        return collate([next(substitutes) if item is None else item for item in opened])

    def open(self, index: int, row: int, draws: Draws) -> Batch | None:
        assert isinstance(self.data, FileDataset)
        own = draws.row(row)

        def view(source: Size) -> View:
            return training_views(self.augment, source, self.preprocess.image_size, own)[0]

        try:
            return load_sample(self.data, int(index), view, self.preprocess)
        except BadImage as error:
            self.unreadable[self.data.location(int(index))] = error.reason
            return None

    @functools.cache  # noqa: B019 - a loader lives as long as its run
    def pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, thread_name_prefix="images")

    def stream(self, start: int, stop: int) -> Iterator[Batch]:
        """Iterate over the batches of steps ``start`` to ``stop`` - 1; batches of files are prefetched."""
        steps = range(start, stop)
        return map(self.batch, steps) if isinstance(self.data, ArrayDataset) else prefetch(self.batch, steps)


def prefetch(make: Callable[[int], Batch], steps: range) -> Iterator[Batch]:
    """Like ``map``, with the next few batches made in a background thread, whose exceptions are raised here."""
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as background:
        waiting = deque(background.submit(make, step) for step in steps[:PREFETCHED_BATCHES])
        try:
            for step in itertools.chain(steps[PREFETCHED_BATCHES:], [None] * PREFETCHED_BATCHES):
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
    """Evaluation batches: every image once, in order, with the model's evaluation preprocessing.

    Iterating yields (positions, batch). Unreadable images are left out and listed in ``unreadable``.
    """

    def __init__(self, data: Dataset, preprocess: Preprocess, *, batch_size: int = 256, workers: int = 0) -> None:
        self.data, self.preprocess, self.batch_size = data, preprocess, batch_size
        self.workers = workers or os.cpu_count() or 1
        self.unreadable: dict[str, str] = {}

    def __iter__(self) -> Iterator[tuple[Indices, Batch]]:
        return self.batches(np.arange(len(self.data)))

    def batches(self, indices: Indices, *, skip_empty: bool = True) -> Iterator[tuple[Indices, Batch]]:
        """Iterate over batches of these images, with the positions in ``indices`` of the readable ones.

        A batch without readable images is skipped. With ``skip_empty=False``, a blank image without a position is
        yielded instead, for processes that must all run the model equally often.
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
        return Batch(Inputs(images), targets.apply_views(views), tuple(views))

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
        """Return a batch of one all-zero image, shaped like the image at ``index``."""
        several = (self.data.num_views,) if self.data.num_views > 1 else ()
        images = torch.zeros(1, *several, self.preprocess.num_channels, *self.preprocess.image_size)
        cameras, targets = self.data.cameras(index), Classes(torch.zeros(1, len(self.data.classes)))
        return Batch(Inputs(images, cameras=None if cameras is None else torch.from_numpy(cameras)[None]), targets)

    def open(self, index: int) -> Batch | None:
        assert isinstance(self.data, FileDataset)
        try:
            return load_sample(
                self.data, int(index), partial(evaluation_view, preprocess=self.preprocess), self.preprocess
            )
        except BadImage as error:
            self.unreadable[self.data.location(int(index))] = error.reason
            return None


def load_sample(data: FileDataset, index: int, view: Callable[[Size], View], preprocess: Preprocess) -> Batch:
    """Open one image, or the views of one scene, as a uint8 batch of one, with targets transformed alike."""
    found, mode = data.image(index), pil_mode(preprocess)
    images = [image.convert(mode) for image in (found if isinstance(found, tuple) else (found,))]
    views = [view((image.height, image.width)) for image in images]
    pixels = torch.stack([own.image(image, fill_color(preprocess)) for own, image in zip(views, images, strict=True)])
    targets, size = data.targets(np.array([index])), views[0].source
    if targets.geometric:
        try:
            targets.check([size], len(data.classes))
        except ValueError as error:
            raise ValueError(f"{data.location(index)}: {error}") from None
    cameras = data.cameras(index)
    if cameras is not None:
        matrices = np.stack([own.matrix for own in views])
        cameras = (matrices @ cameras).astype(np.float32)
    several = isinstance(found, tuple)
    inputs = Inputs(
        pixels[None] if several else pixels, cameras=None if cameras is None else torch.from_numpy(cameras)[None]
    )
    return Batch(inputs, targets if several else targets.apply_views(views), tuple(views))


def collate(parts: list[Batch]) -> Batch:
    """Concatenate batches of one."""
    images, cameras = torch.cat([part.images for part in parts]), [part.inputs.cameras for part in parts]
    known = [camera for camera in cameras if camera is not None]
    inputs = Inputs(images, cameras=torch.cat(known) if len(known) == len(parts) else None)
    kind: type[Targets] = type(parts[0].targets)
    views = tuple(view for part in parts for view in part.views)
    return Batch(inputs, kind.cat([part.targets for part in parts]), views)


def first_unreadable(unreadable: dict[str, str]) -> str:
    location, reason = next(iter(unreadable.items()))
    return f"{location} ({reason})"
