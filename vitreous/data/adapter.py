"""Adapt third-party map-style datasets, such as torchvision's, for training and evaluation.

All targets are read once at the start and stored; images are read on demand and one at a time, since few datasets are
thread-safe.
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
from vitreous.data.foreign import Items, describe, resolve_item
from vitreous.data.foreign_targets import (
    StoredTarget,
    collate_targets,
    min_num_classes,
    names_to_indices,
    read_target,
    target_type,
)
from vitreous.data.image_files import BadImage
from vitreous.samples import Targets

TARGET_ATTRIBUTES = ("targets", "labels", "_labels")  # where torchvision's datasets store all targets
SAMPLED_ITEMS = 8  # items that are read twice to detect random transforms


class AdaptedDataset(FileDataset):
    """A subset of a third-party dataset's items, with their targets in the same order."""

    def __init__(
        self,
        items: Items,
        stored_targets: Sequence[Any],
        classes: Sequence[str],
        *,
        target: type[Targets],
        indices: Indices,
        random_images: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.items, self.stored_targets, self.indices = items, stored_targets, indices
        self.classes, self.target = tuple(classes), target
        #: Whether reading an item twice gives different images, so that it must not be cached.
        self.random_images = random_images
        #: Messages for the user.
        self.notes = notes

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int) -> Image.Image:
        return self.items[int(self.indices[index])][0]

    def targets(self, indices: Indices) -> Targets:
        return collate_targets([self.stored_targets[int(index)] for index in indices], self.target, self.classes)

    def class_labels(self, indices: Indices) -> NDArray[Any]:
        stored_targets = [self.stored_targets[int(index)] for index in indices]
        numbers = all(isinstance(label, int) for label in stored_targets)
        return np.array(stored_targets, dtype=np.int64) if numbers else super().class_labels(indices)

    def subset(self, indices: Indices) -> AdaptedDataset:
        stored_targets = [self.stored_targets[int(index)] for index in indices]
        own = self.indices[indices]
        return AdaptedDataset(
            self.items, stored_targets, self.classes, target=self.target, indices=own, random_images=self.random_images
        )

    def location(self, index: int) -> str:
        return self.items.location(int(self.indices[index]))


@dataclass(frozen=True)
class ScannedDataset:
    """The targets of a third-party dataset, all read."""

    items: Items
    stored_targets: list[StoredTarget]
    indices: Indices  # the readable items
    random_images: bool
    unreadable: dict[str, str]

    @classmethod
    def of(cls, dataset: Any) -> ScannedDataset:
        items = Items(dataset)
        if not len(items):
            raise ValueError(f"the dataset is empty: {describe(dataset)}")
        sample = np.unique(np.linspace(0, len(items) - 1, min(SAMPLED_ITEMS, len(items))).astype(int)).tolist()
        random_images = any(is_random_item(items, index) for index in sample)
        stored = precomputed_targets(items, sample)
        if stored is not None:
            return cls(items, stored, np.arange(len(items)), random_images, {})
        found: dict[int, StoredTarget] = {}
        unreadable: dict[str, str] = {}
        for index in range(len(items)):
            try:
                found[index] = items.target(index)
            except BadImage as error:
                unreadable[items.location(index)] = error.reason
        if not found:
            raise ValueError(f"no item of {describe(dataset)} could be read, {example_of(unreadable)}")
        return cls(items, list(found.values()), np.array(list(found), dtype=np.int64), random_images, unreadable)

    def notes(self) -> tuple[str, ...]:
        name, notes = describe(self.items.dataset), []
        if self.unreadable:
            notes.append(
                f"{name}: {len(self.unreadable):,} could not be read and were left out, {example_of(self.unreadable)}"
            )
        if self.random_images:
            notes.append(
                f"{name}: its images differ each time they are read, so they are not cached in memory and runs are "
                "not exactly reproducible; pass a dataset without random transforms, since Vitreous augments images"
            )
        return tuple(notes)

    def class_names(self) -> tuple[str, ...]:
        """Return the dataset's class names, or an empty tuple if it declares none."""
        dataset = resolve_item(self.items.dataset, 0)[0]
        named = getattr(self.items.dataset, "classes", None) or getattr(dataset, "classes", None)
        numbers = getattr(dataset, "class_to_idx", None)
        if not named and isinstance(numbers, Mapping) and numbers:
            named = sorted(numbers, key=lambda name: int(numbers[name]))
        if not isinstance(named, Sequence) or isinstance(named, str):
            return ()
        first = tuple(str(name[0]) if isinstance(name, tuple | list) and name else str(name) for name in named)
        return first if len(set(first)) == len(first) else tuple(map(str, named))

    def num_classes(self) -> int:
        """Return the declared number of classes, or the fewest that its targets require if that is more."""
        declared = getattr(resolve_item(self.items.dataset, 0)[0], "num_classes", None)
        return max(min_num_classes(self.stored_targets), declared if isinstance(declared, int) else 0)


def adapt(
    *datasets: Any,
    target: type[Targets] | None = None,
    classes: Sequence[str] = (),
    num_classes: int = 0,
) -> list[AdaptedDataset]:
    """Adapt third-party datasets to :class:`Dataset`, all with the same classes.

    Args:
        datasets: Map-style datasets with items (image, target).
        target: Required type of targets; None infers it.
        classes: Class names to use if the datasets declare none and the number of classes matches.
        num_classes: Least number of classes if the datasets declare no names. Classes without a name are named by
            their index.

    Raises:
        ValueError: Targets are malformed, the class names of two datasets differ, or images with masks or boxes are
            transformed at random.
    """
    scans = [ScannedDataset.of(dataset) for dataset in datasets]
    all_targets = [stored_targets for scan in scans for stored_targets in scan.stored_targets]
    kind = target_type(all_targets, target)
    class_names = resolve_class_names(scans, all_targets, classes, num_classes)
    made = []
    for scan in scans:
        if scan.random_images and kind.geometric:
            raise ValueError(
                f"the items of {describe(scan.items.dataset)} differ each time they are read, so images and "
                f"{kind.description} would not match; remove random transforms, since Vitreous augments both together"
            )
        stored_targets = names_to_indices(scan.stored_targets, class_names)
        about: Any = {"indices": scan.indices, "random_images": scan.random_images, "notes": scan.notes()}
        made.append(AdaptedDataset(scan.items, stored_targets, class_names, target=kind, **about))
    return made


def resolve_class_names(
    scans: Sequence[ScannedDataset], all_targets: Sequence[StoredTarget], known: Sequence[str], num_classes: int
) -> tuple[str, ...]:
    declared = [class_names for scan in scans if (class_names := scan.class_names())]
    if declared and any(class_names != declared[0] for class_names in declared):
        raise ValueError(
            f"training and validation data must have the same classes, got {declared[0][:5]} and {declared[1][:5]}"
        )
    needed = max((scan.num_classes() for scan in scans), default=0)
    if declared and len(declared[0]) >= needed:
        return declared[0]
    if all_targets and isinstance(all_targets[0], str):
        return tuple(sorted({str(name) for name in all_targets}))
    needed = max(needed, num_classes)
    return tuple(known) if len(known) == needed else tuple(map(str, range(needed)))


def is_random_item(items: Items, index: int) -> bool:
    """Return whether reading an item twice gives different images."""
    try:
        first, second = items[index][0], items[index][0]
    except BadImage:
        return False
    return first.size != second.size or first.tobytes() != second.tobytes()


def precomputed_targets(items: Items, sample: Sequence[int]) -> list[StoredTarget] | None:
    """Return all targets if the dataset stores them in an attribute that matches its items, without opening images."""
    dataset = items.dataset
    root: Any = dataset.dataset if isinstance(dataset, Subset) else dataset
    for name in TARGET_ATTRIBUTES:
        values = getattr(root, name, None)
        if not isinstance(values, list | tuple | np.ndarray | Tensor) or len(values) != len(root):
            continue
        values = values.tolist() if isinstance(values, np.ndarray | Tensor) else values
        chosen = [values[int(index)] for index in dataset.indices] if isinstance(dataset, Subset) else values
        if all(isinstance(value, int | np.integer | str) for value in chosen):
            stored_targets = [read_target(value) for value in chosen]
            return stored_targets if match_items(items, stored_targets, sample) else None
    return None


def match_items(items: Items, stored: Sequence[StoredTarget], sample: Sequence[int]) -> bool:
    """Return whether stored targets equal those of the items; a target transform makes them differ."""
    for index in sample:
        try:
            target = items.target(index)
        except BadImage:
            continue
        if not isinstance(target, int | str) or target != stored[index]:
            return False
    return True


def example_of(unreadable: Mapping[str, str]) -> str:
    location, reason = next(iter(unreadable.items()))
    return f"e.g. {location} ({reason})"
