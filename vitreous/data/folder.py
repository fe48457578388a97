"""Class folders of images: ``photos/cat/1.jpg``, or with splits ``photos/train/cat/1.jpg``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.base import Indices
from vitreous.data.encoded import EncodedDataset
from vitreous.data.image_files import BadImage, open_image, printable
from vitreous.data.splits import (
    Splits,
    first_few,
    is_visible,
    require_same_classes,
    require_two_classes,
    split_folders,
    visible_folders,
)
from vitreous.files import CannotRead, files_below, open_file
from vitreous.samples import Classes

MAX_FILE_BYTES = 2**30  # per image file


class PathDataset(EncodedDataset):
    """A classification dataset of image files, given by their paths."""

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        labels: NDArray[Any],
        classes: Sequence[str],
        *,
        target: type[Classes] = Classes,
    ) -> None:
        super().__init__(labels, classes, target=target)
        if len(paths) != len(labels):
            raise ValueError(f"expected one label per path, got {len(labels)} labels for {len(paths)} paths")
        self.paths = paths if isinstance(paths, PathList) else PathList([os.fspath(path) for path in paths])

    def image(self, index: int) -> Image.Image:
        return open_image(self.paths[index])

    def content(self, index: int) -> bytes:
        try:
            with open_file(self.paths[index]) as file:
                if (size := os.fstat(file.fileno()).st_size) > MAX_FILE_BYTES:
                    raise BadImage(f"the file is too large for an image ({size:,} bytes)")
                return file.read()
        except CannotRead as error:
            raise BadImage(str(error), error.strerror) from None

    def location(self, index: int) -> str:
        return printable(self.paths[index])

    def subset(self, indices: Indices) -> PathDataset:
        return PathDataset(self.paths.take(indices), self.labels[indices], self.classes, target=self.target)


class PathList(Sequence[Path]):
    """A sequence of paths, stored as strings: a million ``Path`` objects would take half a gigabyte."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: Any) -> Any:
        return Path(self.texts[index])

    def take(self, indices: Indices) -> PathList:
        return PathList([self.texts[index] for index in indices])


def open_folder(path: Path) -> Splits:
    """Open a folder of class folders, or of ``train``, ``val`` and ``test`` folders that each hold class folders."""
    folders = split_folders(path)
    notes: list[str] = []
    parts = {name: read_classes(folder, notes) for name, folder in (folders or {"train": path}).items()}
    if folders:
        require_same_classes({folders[name]: parts[name] for name in sorted(parts, key="train".__ne__)})
        if others := [folder.name for folder in visible_folders(path) if folder not in folders.values()]:
            notes.append(f"folders other than train, validation and test were left out: {first_few(others)}")
    require_two_classes(parts["train"].classes, folders.get("train", path))
    return Splits(parts["train"], parts.get("valid"), parts.get("test"), tuple(notes))


def read_classes(path: Path, notes: list[str]) -> PathDataset:
    """Collect the images below each class folder; append notes about files left out."""
    folders = visible_folders(path)
    if not folders:
        raise ValueError(why_no_classes(path))
    others: list[str] = []
    number, start = {folder.name: index for index, folder in enumerate(folders)}, len(os.path.join(path, ""))
    files: list[list[str]] = [[] for _ in folders]
    for file in files_below(path, is_visible, others=others):
        name, inside, _ = file[start:].partition(os.sep)
        if inside and name in number:
            files[number[name]].append(file)
    images = [sorted(filter(is_image, own)) for own in files]
    if empty := [folder.name for folder, own in zip(folders, images, strict=True) if not own]:
        raise ValueError(
            f"no images in these class folders of {printable(path)}: {first_few(empty)}; fill or remove them"
        )
    found = [file for own in images for file in own]
    note_others(notes, path, [file for own in files for file in own], found, others)
    labels = np.repeat(np.arange(len(folders)), [len(own) for own in images])
    return PathDataset(found, labels, [printable(folder.name) for folder in folders])


def why_no_classes(path: Path) -> str:
    names = [entry for entry in os.listdir(path) if is_visible(entry)]
    if not names:
        return f"{path} is empty; it should hold one folder of images per class, e.g. {path}/cat/1.jpg"
    if any(is_image(str(path / name)) for name in names):
        return f"the images are directly in {path}; move each class into its own folder, or pass a CSV file"
    return f"{path} holds neither images nor class folders, only {first_few(sorted(names))}"


def note_others(notes: list[str], path: Path, files: list[str], found: list[str], others: list[str]) -> None:
    """Append notes about files that are not images, cannot be opened, or are outside the class folders."""
    for number, left_out, subject in (
        (len(files) - len(found), sorted(set(files) - set(found)), ("file is not an image", "files are not images")),
        (len(others), sorted(others), ("pipe, device or broken link", "pipes, devices or broken links")),
    ):
        if number:
            names = [os.path.relpath(file, path) for file in left_out]
            notes.append(f"{number:,} {subject[number > 1]}, left out: {first_few(names)}")
    with os.scandir(path) as entries:
        loose = sorted(e.name for e in entries if e.is_file() and is_visible(e.name) and is_image(e.path))
    if loose:
        notes.append(f"images outside the class folders of {path}, left out: {first_few(loose)}")


def is_image(path: str) -> bool:
    """Return whether a file is an image, by its suffix or, for unknown suffixes, by opening it."""
    if os.path.splitext(path)[1].lower() in image_suffixes():
        return True
    try:
        with open_file(path) as file, Image.open(file):
            return True
    except Exception:  # Pillow's plugins may raise any exception on other formats
        return False


@cache
def image_suffixes() -> frozenset[str]:
    known = Image.registered_extensions()
    return frozenset(ending for ending, kind in known.items() if kind in Image.OPEN)
