"""Training, validation and test splits; a missing validation split is held out of the training images."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Dataset, Indices
from vitreous.data.encoded import EncodedDataset
from vitreous.data.image_files import printable
from vitreous.data.labels import class_indices, dataset_positive_pairs
from vitreous.samples import Classes, MultiLabels

#: Names of splits in folders and CSV files.
SPLIT_NAMES = {"train": "train", "val": "valid", "valid": "valid", "validation": "valid", "test": "test"}


@dataclass(frozen=True)
class Splits:
    """The splits of a dataset.

    Attributes:
        train: Training images.
        valid: Validation images, if any.
        test: Test images, if any.
        notes: Messages for the user, e.g. about files left out.
        held_out: Whether the validation images were held out of the training images.
    """

    train: Dataset
    valid: Dataset | None = None
    test: Dataset | None = None
    notes: tuple[str, ...] = ()
    held_out: bool = False

    def parts(self) -> dict[str, Dataset]:
        """Return the existing splits by name."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: dataset for name, dataset in named.items() if dataset is not None}


def split_folders(path: Path) -> dict[str, Path]:
    """Find ``train``, ``val`` and ``test`` below a folder; return nothing if its folders are classes instead."""
    found: dict[str, Path] = {}
    folders = visible_folders(path)
    for folder in folders:
        if name := SPLIT_NAMES.get(folder.name.lower()):
            if name in found:
                raise ValueError(f"{path} holds both {found[name].name} and {folder.name}; keep one of them")
            found[name] = folder
    return found if "train" in found and (len(found) > 1 or len(folders) == 1) else {}


def visible_folders(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir() and is_visible(entry.name))


def is_visible(name: str) -> bool:
    """Return whether a name is neither hidden nor macOS archive metadata."""
    return not name.startswith((".", "__MACOSX"))


def require_two_classes(classes: Sequence[str], location: object) -> None:
    if len(classes) < 2:
        known = f"only one class, {classes[0]!r}" if classes else "no class"
        raise ValueError(f"{location} has {known}; classification needs at least two")


def require_same_classes(parts: dict[Path, Dataset]) -> None:
    """Require that all splits have the same classes in the same order."""
    (first, train), *others = parts.items()
    for path, dataset in others:
        if dataset.classes != train.classes:
            here, there = set(train.classes), set(dataset.classes)
            differences = [
                f"only in {place}: {first_few(sorted(names))}"
                for place, names in ((first, here - there), (path, there - here))
                if names
            ]
            raise ValueError(f"the splits must have the same classes in the same order; {'; '.join(differences)}")


def first_few(names: Sequence[str], limit: int = 3) -> str:
    """List the first few names in printable form, with the number of the others."""
    return ", ".join(map(printable, names[:limit])) + (
        f" and {len(names) - limit:,} more" if len(names) > limit else ""
    )


def hold_out(splits: Splits, share: float, seed: int, root: Path | None = None) -> Splits:
    """Hold out a validation set from the training set, unless there is one or ``share`` is 0.

    Image files are chosen by a hash of their path below ``root``, so that adding or removing other files does not move
    an image between the splits.
    """
    if not 0 <= share < 1:
        raise ValueError(f"valid_share must lie in [0, 1), got {share}")
    if splits.valid is not None or share == 0:
        return splits
    names = stable_names(splits.train, root)
    held = (
        hold_out_mask(splits.train, share, seed)
        if names is None
        else hold_out_mask_by_name(splits.train, names, share, seed)
    )
    if not held.any():
        note = "no validation split, and no class has enough images to hold one out"
        return replace(splits, notes=(*splits.notes, note))
    train, valid = (splits.train.subset(np.flatnonzero(part)) for part in (~held, held))
    number = f"{held.sum():,} image{'s' if held.sum() > 1 else ''}"
    about = "" if names is None else "about "
    note = f"no validation split: {about}{100 * share:.3g}% of each class held out ({number})"
    return replace(splits, train=train, valid=valid, notes=(*splits.notes, note), held_out=True)


def stable_names(dataset: Dataset, root: Path | None = None) -> list[str] | None:
    """Return names that identify images independently of their root folder, e.g. ``cat/1.jpg``; None if not files."""
    if not isinstance(dataset, EncodedDataset):
        return None
    above = "" if root is None else os.path.join(root, "")
    names = (dataset.location(index).removeprefix(above).replace(os.sep, "/") for index in range(len(dataset)))
    return [unicodedata.normalize("NFC", name) for name in names]


def hold_out_mask_by_name(dataset: Dataset, names: Sequence[str], share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the images to hold out: those whose name and seed hash to a number in [0, 1) below ``share``.

    An image's split is thus independent of the other images, with one exception: so that every class with two or more
    images has some in both splits, the one with the smallest hash is always held out, the one with the largest never.
    """
    numbers = np.array([hash_to_unit(f"{seed}/{name}") for name in names])
    held = numbers < share
    groups = strata(dataset)
    order = np.lexsort((numbers, groups))
    starts = np.unique(groups[order], return_index=True)[1]
    for members in np.split(order, starts[1:]):
        held[members[0]] = True
        held[members[-1]] = False
    if dataset.target is MultiLabels:
        keep_one_of_each(dataset, held)
    return held


def hash_to_unit(text: str) -> float:
    """Hash a text to a number in [0, 1)."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def hold_out_mask(dataset: Dataset, share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the images to hold out: ``share`` of each class, at least one but never all of them."""
    groups = strata(dataset)
    order = np.argsort(groups, kind="stable")
    starts = np.unique(groups[order], return_index=True)[1]
    held = np.zeros(len(dataset), dtype=np.bool_)
    for number, members in enumerate(np.split(order, starts[1:])):
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held[np.random.default_rng([seed, number]).permutation(members)[:count]] = True
    if dataset.target is MultiLabels:
        keep_one_of_each(dataset, held)
    return held


def strata(dataset: Dataset) -> Indices:
    """Return the stratum of each image for stratified sampling: its class, its rarest label, or 0 for all."""
    if not issubclass(dataset.target, Classes):
        return np.zeros(len(dataset), dtype=np.int64)
    return rarest_labels(dataset) if dataset.target is MultiLabels else class_indices(dataset)


def rarest_labels(dataset: Dataset) -> Indices:
    """Return the rarest label of each image, so that rare labels are stratified as well; −1 for none."""
    images, classes = dataset_positive_pairs(dataset)
    rarity = np.bincount(classes, minlength=len(dataset.classes))[classes]
    order = np.lexsort((classes, rarity, images))
    has_any, first = np.unique(images[order], return_index=True)
    rarest = np.full(len(dataset), -1, dtype=np.int64)
    rarest[has_any] = classes[order][first]
    return rarest


def keep_one_of_each(dataset: Dataset, held: NDArray[np.bool_]) -> None:
    """Return one image of every label that is held out entirely to the training set."""
    images, classes = dataset_positive_pairs(dataset)
    left = np.bincount(classes[~held[images]], minlength=len(dataset.classes))
    labels, first = np.unique(classes, return_index=True)
    held[images[first[left[labels] == 0]]] = False
