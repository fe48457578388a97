"""Training, validation and test images; validation is held out of training where nobody has set it apart."""

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
from vitreous.data.encoded import Encoded
from vitreous.data.image_files import printable
from vitreous.data.labels import labels_of, shown
from vitreous.samples import Classes, MultiLabels

#: What people call the parts of a dataset, in folders and in tables.
SPLIT_NAMES = {"train": "train", "val": "valid", "valid": "valid", "validation": "valid", "test": "test"}


@dataclass(frozen=True)
class Splits:
    """The parts of a dataset, and sentences about it that its user should read."""

    train: Dataset
    valid: Dataset | None = None
    test: Dataset | None = None
    notes: tuple[str, ...] = ()
    held_out: bool = False  # whether the validation set was taken out of the training set

    def parts(self) -> dict[str, Dataset]:
        """Those that exist, by name."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: dataset for name, dataset in named.items() if dataset is not None}


def split_folders(path: Path) -> dict[str, Path]:
    """``train``, ``val`` and ``test`` below a folder; none of them where its folders must be classes."""
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
    """Neither hidden nor what a Mac leaves in its archives."""
    return not name.startswith((".", "__MACOSX"))


def need_two_classes(classes: Sequence[str], where: object) -> None:
    if len(classes) < 2:
        known = f"only one class, {classes[0]!r}" if classes else "no class"
        raise ValueError(f"{where} has {known}; there must be at least two to tell apart")


def need_same_classes(parts: dict[Path, Dataset]) -> None:
    """Every part has the classes of the first."""
    (first, train), *others = parts.items()
    for path, dataset in others:
        if dataset.classes != train.classes:
            here, there = set(train.classes), set(dataset.classes)
            differences = [
                f"only in {place}: {some(sorted(names))}"
                for place, names in ((first, here - there), (path, there - here))
                if names
            ]
            raise ValueError(f"the splits must have the same classes in the same order; {'; '.join(differences)}")


def some(names: Sequence[str], limit: int = 3) -> str:
    """The first few of many, in printable form."""
    return ", ".join(map(printable, names[:limit])) + (
        f" and {len(names) - limit:,} more" if len(names) > limit else ""
    )


def hold_out(splits: Splits, share: float, seed: int, root: Path | None = None) -> Splits:
    """A validation set out of the training set, unless there is one already or ``share`` is 0.

    Images in files are chosen by their names below ``root``, so that others may come and go without moving them.
    """
    if not 0 <= share < 1:
        raise ValueError(f"valid_share must lie in [0, 1), got {share}")
    if splits.valid is not None or share == 0:
        return splits
    names = names_of(splits.train, root)
    held = held_out(splits.train, share, seed) if names is None else held_out_by_name(splits.train, names, share, seed)
    if not held.any():
        note = "no validation split, and no class has enough images to hold any out"
        return replace(splits, notes=(*splits.notes, note))
    train, valid = (splits.train.subset(np.flatnonzero(part)) for part in (~held, held))
    number = f"{held.sum():,} image{'s' if held.sum() > 1 else ''}"
    about = "" if names is None else "about "
    note = f"no validation split: {about}{100 * share:.3g}% of each class held out ({number})"
    return replace(splits, train=train, valid=valid, notes=(*splits.notes, note), held_out=True)


def names_of(dataset: Dataset, root: Path | None = None) -> list[str] | None:
    """What identifies each image wherever its folder lies, e.g. ``cat/1.jpg``; None of images that are no files."""
    if not isinstance(dataset, Encoded):
        return None
    above = "" if root is None else os.path.join(root, "")
    names = (dataset.where(index).removeprefix(above).replace(os.sep, "/") for index in range(len(dataset)))
    return [unicodedata.normalize("NFC", name) for name in names]


def held_out_by_name(dataset: Dataset, names: Sequence[str], share: float, seed: int) -> NDArray[np.bool_]:
    """Which images to hold out: those whose name's digest with the seed, as a number in [0, 1), is below ``share``.

    So an image stays where it is whatever else comes or goes. Where this leaves a class none to validate, or none to
    learn from, its image with the smallest digest is held out, or that with the largest given back.
    """
    numbers = np.array([hashed(f"{seed}/{name}") for name in names])
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


def hashed(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def held_out(dataset: Dataset, share: float, seed: int) -> NDArray[np.bool_]:
    """Which images to hold out: ``share`` of each class and at least one, but never the last one of a class."""
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
    """A number per image; those with the same one are held out in the same share."""
    if not issubclass(dataset.target, Classes):
        return np.zeros(len(dataset), dtype=np.int64)
    return rarest_labels(dataset) if dataset.target is MultiLabels else labels_of(dataset)


def rarest_labels(dataset: Dataset) -> Indices:
    """Of each image's labels the rarest, so that holding out by it is fair to rare ones; −1 where it has none."""
    images, classes = shown(dataset)
    rarity = np.bincount(classes, minlength=len(dataset.classes))[classes]
    order = np.lexsort((classes, rarity, images))
    has_any, first = np.unique(images[order], return_index=True)
    rarest = np.full(len(dataset), -1, dtype=np.int64)
    rarest[has_any] = classes[order][first]
    return rarest


def keep_one_of_each(dataset: Dataset, held: NDArray[np.bool_]) -> None:
    """Give back an image of every label that would otherwise be held out altogether."""
    images, classes = shown(dataset)
    left = np.bincount(classes[~held[images]], minlength=len(dataset.classes))
    labels, first = np.unique(classes, return_index=True)
    held[images[first[left[labels] == 0]]] = False
