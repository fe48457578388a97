"""Other people's datasets as ours, to learn from and to measure on: torchvision's, or anybody's.

Targets are read once, in the beginning, and kept; images are asked for when they are needed, one at a time, since few
datasets expect threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset

from vitreous.data.base import FileDataset, Indices
from vitreous.data.foreign import Items, describe, innermost
from vitreous.data.foreign_targets import Kept, join, kind_of, num_classes, numbered, read_target
from vitreous.data.image_files import BadImage
from vitreous.samples import Targets

STORED = ("targets", "labels", "_labels")  # where torchvision's datasets keep all targets
LOOKED_AT = 8  # items that are read twice to learn whether they change


class Adapted(FileDataset):
    """Some items of a foreign dataset; ``kept`` are their targets in the same order."""

    def __init__(
        self,
        items: Items,
        kept: Sequence[Any],
        classes: Sequence[str],
        *,
        target: type[Targets],
        indices: Indices,
        changes: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.items, self.kept, self.indices = items, kept, indices
        self.classes, self.target = tuple(classes), target
        #: Whether an item comes out differently each time, so that it must not be kept in memory.
        self.changes = changes
        #: What its user should know.
        self.notes = notes

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int) -> Image.Image:
        return self.items[int(self.indices[index])][0]

    def targets(self, indices: Indices) -> Targets:
        return join([self.kept[int(index)] for index in indices], self.target, self.classes)

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        kept = [self.kept[int(index)] for index in indices]
        numbers = all(isinstance(label, int) for label in kept)
        return np.array(kept, dtype=np.int64) if numbers else super().class_labels(indices)

    def subset(self, indices: Indices) -> Adapted:
        kept = [self.kept[int(index)] for index in indices]
        own = self.indices[indices]
        return Adapted(self.items, kept, self.classes, target=self.target, indices=own, changes=self.changes)

    def where(self, index: int) -> str:
        return self.items.where(int(self.indices[index]))


@dataclass(frozen=True)
class Reading:
    """A foreign dataset's targets, read once."""

    items: Items
    kept: list[Kept]
    indices: Indices  # of the items that could be read
    changes: bool
    unreadable: dict[str, str]

    @classmethod
    def of(cls, dataset: Any) -> Reading:
        items = Items(dataset)
        if not len(items):
            raise ValueError(f"{describe(dataset)}: there is nothing in it")
        sample = np.unique(np.linspace(0, len(items) - 1, min(LOOKED_AT, len(items))).astype(int)).tolist()
        changes = any(differ(items, index) for index in sample)
        stored = stored_targets(items, sample)
        if stored is not None:
            return cls(items, stored, np.arange(len(items)), changes, {})
        found: dict[int, Kept] = {}
        unreadable: dict[str, str] = {}
        for index in range(len(items)):
            try:
                found[index] = items.target(index)
            except BadImage as error:
                unreadable[items.where(index)] = error.reason
        if not found:
            raise ValueError(f"no item could be read of {describe(dataset)}; {some_of(unreadable)}")
        return cls(items, list(found.values()), np.array(list(found), dtype=np.int64), changes, unreadable)

    def notes(self) -> tuple[str, ...]:
        name, notes = describe(self.items.dataset), []
        if self.unreadable:
            notes.append(
                f"{name}: {len(self.unreadable):,} could not be read and are left out, {some_of(self.unreadable)}"
            )
        if self.changes:
            notes.append(
                f"{name}: its images come out differently each time, so that they are not kept in memory and runs "
                "cannot be repeated exactly; give images without random transforms, Vitreous augments them itself"
            )
        return tuple(notes)

    def names(self) -> tuple[str, ...]:
        """What the dataset calls its classes; nothing where it does not say."""
        dataset = innermost(self.items.dataset, 0)[0]
        named = getattr(self.items.dataset, "classes", None) or getattr(dataset, "classes", None)
        numbers = getattr(dataset, "class_to_idx", None)
        if not named and isinstance(numbers, Mapping) and numbers:
            named = sorted(numbers, key=lambda name: int(numbers[name]))
        if not isinstance(named, Sequence) or isinstance(named, str):
            return ()
        first = tuple(str(name[0]) if isinstance(name, tuple | list) and name else str(name) for name in named)
        return first if len(set(first)) == len(first) else tuple(map(str, named))

    def count(self) -> int:
        """As many classes as it says, or as its targets need."""
        said = getattr(innermost(self.items.dataset, 0)[0], "num_classes", None)
        return max(num_classes(self.kept), said if isinstance(said, int) else 0)


def adapt(
    *datasets: Any,
    target: type[Targets] | None = None,
    classes: Sequence[str] = (),
    count: int = 0,
) -> list[Adapted]:
    """Foreign datasets as ours, all with the same classes.

    Class names are those of the datasets. Where they have none, there are as many classes as the targets need and
    ``count`` at least: they are called ``classes`` if these are as many, and otherwise by their numbers. ``target`` is
    the kind that is needed.
    """
    readings = [Reading.of(dataset) for dataset in datasets]
    every = [kept for reading in readings for kept in reading.kept]
    kind = kind_of(every, target)
    names = class_names(readings, every, classes, count)
    made = []
    for reading in readings:
        if reading.changes and kind.geometric:
            raise ValueError(
                f"the items of {describe(reading.items.dataset)} come out differently each time, so that images and "
                f"{kind.words} would not fit; leave random transforms out: Vitreous augments both together"
            )
        kept = numbered(reading.kept, names)
        about: Any = {"indices": reading.indices, "changes": reading.changes, "notes": reading.notes()}
        made.append(Adapted(reading.items, kept, names, target=kind, **about))
    return made


def class_names(
    readings: Sequence[Reading], every: Sequence[Kept], known: Sequence[str], count: int
) -> tuple[str, ...]:
    said = [names for reading in readings if (names := reading.names())]
    if said and any(names != said[0] for names in said):
        raise ValueError(f"training and validation data must have the same classes; {said[0][:5]} and {said[1][:5]}")
    needed = max((reading.count() for reading in readings), default=0)
    if said and len(said[0]) >= needed:
        return said[0]
    if every and isinstance(every[0], str):
        return tuple(sorted({str(name) for name in every}))
    needed = max(needed, count)
    return tuple(known) if len(known) == needed else tuple(map(str, range(needed)))


def differ(items: Items, index: int) -> bool:
    """Whether an item is another image when it is asked for again."""
    try:
        first, second = items[index][0], items[index][0]
    except BadImage:
        return False
    return first.size != second.size or first.tobytes() != second.tobytes()


def stored_targets(items: Items, sample: Sequence[int]) -> list[Kept] | None:
    """All targets at once, where the dataset keeps them in a list that agrees with its items."""
    dataset = items.dataset
    root: Any = dataset.dataset if isinstance(dataset, Subset) else dataset
    for name in STORED:
        values = getattr(root, name, None)
        if not isinstance(values, list | tuple | np.ndarray | Tensor) or len(values) != len(root):
            continue
        values = values.tolist() if isinstance(values, np.ndarray | Tensor) else values
        chosen = [values[int(index)] for index in dataset.indices] if isinstance(dataset, Subset) else values
        if all(isinstance(value, int | np.integer | str) for value in chosen):
            kept = [read_target(value) for value in chosen]
            return kept if agrees(items, kept, sample) else None
    return None


def agrees(items: Items, stored: Sequence[Kept], sample: Sequence[int]) -> bool:
    """A transform of targets would make them others than those that are stored."""
    for index in sample:
        try:
            target = items.target(index)
        except BadImage:
            continue
        if not isinstance(target, int | str) or target != stored[index]:
            return False
    return True


def some_of(unreadable: Mapping[str, str]) -> str:
    where, reason = next(iter(unreadable.items()))
    return f"e.g. {where} ({reason})"
