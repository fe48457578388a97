"""Folders of images, one folder for each class: ``photos/cat/1.jpg``, or ``photos/train/cat/1.jpg``."""

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
from vitreous.data.encoded import Encoded
from vitreous.data.image_files import BadImage, open_image, printable
from vitreous.data.splits import (
    Splits,
    is_visible,
    need_same_classes,
    need_two_classes,
    some,
    split_folders,
    visible_folders,
)
from vitreous.files import CannotRead, files_below, open_file
from vitreous.samples import Classes

LARGEST = 2**30  # bytes of an image's file


class Files(Encoded):
    """Images in files of their own."""

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
            raise ValueError(f"{len(paths)} paths, but labels for {len(labels)}")
        self.paths = paths if isinstance(paths, Paths) else Paths([os.fspath(path) for path in paths])

    def image(self, index: int) -> Image.Image:
        return open_image(self.paths[index])

    def content(self, index: int) -> bytes:
        try:
            with open_file(self.paths[index]) as file:
                if (size := os.fstat(file.fileno()).st_size) > LARGEST:
                    raise BadImage(f"{size:,} bytes are more than any image needs")
                return file.read()
        except CannotRead as error:
            raise BadImage(str(error), error.strerror) from None

    def where(self, index: int) -> str:
        return printable(self.paths[index])

    def subset(self, indices: Indices) -> Files:
        return Files(self.paths.take(indices), self.labels[indices], self.classes, target=self.target)


class Paths(Sequence[Path]):
    """Paths kept as text: a million of them as objects would take half a gigabyte."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: Any) -> Any:
        return Path(self.texts[index])

    def take(self, indices: Indices) -> Paths:
        return Paths([self.texts[index] for index in indices])


def open_folder(path: Path) -> Splits:
    """A folder of class folders, or one of ``train``, ``val`` and ``test`` that hold class folders each."""
    folders = split_folders(path)
    notes: list[str] = []
    parts = {name: read_classes(folder, notes) for name, folder in (folders or {"train": path}).items()}
    if folders:
        need_same_classes({folders[name]: parts[name] for name in sorted(parts, key="train".__ne__)})
        if others := [folder.name for folder in visible_folders(path) if folder not in folders.values()]:
            notes.append(f"beside train, validation and test these folders were left out: {some(others)}")
    need_two_classes(parts["train"].classes, folders.get("train", path))
    return Splits(parts["train"], parts.get("valid"), parts.get("test"), tuple(notes))


def read_classes(path: Path, notes: list[str]) -> Files:
    """The images below each class folder, with a note about every file that is none."""
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
        raise ValueError(f"no images in these class folders of {printable(path)}: {some(empty)}; fill or remove them")
    found = [file for own in images for file in own]
    note_others(notes, path, [file for own in files for file in own], found, others)
    labels = np.repeat(np.arange(len(folders)), [len(own) for own in images])
    return Files(found, labels, [printable(folder.name) for folder in folders])


def why_no_classes(path: Path) -> str:
    names = [entry for entry in os.listdir(path) if is_visible(entry)]
    if not names:
        return f"{path} is empty; it should hold a folder of images for each class, as in {path}/cat/1.jpg"
    if any(is_image(str(path / name)) for name in names):
        return f"the images lie directly in {path}; put each class into a folder of its own, or give a CSV"
    return f"{path} holds neither images nor class folders, but {some(sorted(names))}"


def note_others(notes: list[str], path: Path, files: list[str], found: list[str], others: list[str]) -> None:
    """Notes about files that are no images, cannot be opened at all, or belong to no class."""
    for number, left_out, subject in (
        (len(files) - len(found), sorted(set(files) - set(found)), ("file is no image", "files are no images")),
        (len(others), sorted(others), ("pipe, device or dead link", "pipes, devices or dead links")),
    ):
        if number:
            names = [os.path.relpath(file, path) for file in left_out]
            notes.append(f"{number:,} {subject[number > 1]}, left out: {some(names)}")
    with os.scandir(path) as entries:
        loose = sorted(e.name for e in entries if e.is_file() and is_visible(e.name) and is_image(e.path))
    if loose:
        notes.append(f"images beside the class folders of {path} have no class, left out: {some(loose)}")


def is_image(path: str) -> bool:
    """By its ending, which is quick; the few files with other endings are asked themselves."""
    if os.path.splitext(path)[1].lower() in image_endings():
        return True
    try:
        with open_file(path) as file, Image.open(file):
            return True
    except Exception:  # Pillow's plugins raise whatever comes to hand on files that are none of theirs
        return False


@cache
def image_endings() -> frozenset[str]:
    known = Image.registered_extensions()
    return frozenset(ending for ending, kind in known.items() if kind in Image.OPEN)
