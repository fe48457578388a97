"""CIFAR-10 and CIFAR-100 (fine labels), read from the original pickles with a restricted unpickler.

A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.base import Arrays, check_labels
from vitreous.data.splits import Splits, require_two_classes
from vitreous.files import open_file


@dataclass(frozen=True)
class CifarLayout:
    """File names and dictionary keys of one of the two datasets."""

    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str


LAYOUTS = (
    CifarLayout(
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        test="test_batch",
        meta="batches.meta",
        labels="labels",
        names="label_names",
    ),
    CifarLayout(
        "cifar-100-python", ("train",), test="test", meta="meta", labels="fine_labels", names="fine_label_names"
    ),
)


def find_cifar(path: Path) -> tuple[Path, CifarLayout] | None:
    """Find the folder with the batches: ``path`` itself or a known folder in it."""
    below = [(path / layout.folder, layout) for layout in LAYOUTS if (path / layout.folder).is_dir()]
    if len(below) > 1:
        raise ValueError(f"{path} holds both {' and '.join(layout.folder for _, layout in below)}; pass one of them")
    if below:
        return below[0]
    for layout in LAYOUTS:
        if path.name == layout.folder or all((path / name).is_file() for name in (*layout.train, layout.meta)):
            return path, layout
    return None


def is_cifar(path: Path) -> bool:
    return path.is_dir() and find_cifar(path) is not None


def open_cifar(path: Path) -> Splits:
    found = find_cifar(path)
    if found is None:
        raise ValueError(f"{path} holds none of {', '.join(layout.folder for layout in LAYOUTS)}")
    folder, layout = found
    missing = [name for name in (*layout.train, layout.test, layout.meta) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}; unpack the published archive again")
    classes = read_pickle(folder / layout.meta).get(layout.names)
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f"{folder / layout.meta} does not list the class names")
    require_two_classes(classes, folder / layout.meta)
    train, test = (read_batches(folder, names, layout.labels, classes) for names in (layout.train, (layout.test,)))
    return Splits(train, test=test)


def read_batches(folder: Path, names: Sequence[str], key: str, classes: list[str]) -> Arrays:
    images, targets = [], []
    for name in names:
        batch = read_pickle(folder / name)
        pixels, labels = batch.get("data"), batch.get(key)
        if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (3072,)):
            raise ValueError(f"{folder / name} does not hold images of 32×32 pixels")
        if not isinstance(labels, list) or len(labels) != len(pixels) or not labels:
            raise ValueError(f"{folder / name} does not hold a label for each of its {len(pixels)} images")
        images.append(pixels.reshape(-1, 3, 32, 32))
        targets.append(class_indices(labels, len(classes), folder / name))
    return Arrays(np.concatenate(images), np.concatenate(targets), classes)


def class_indices(labels: list[Any], num_classes: int, path: Path) -> NDArray[np.int64]:
    if odd := [label for label in labels if type(label) is not int or abs(label) > 2**31]:
        raise ValueError(f"{path}: the label {str(odd[0])[:40]!r} is not a class index from 0 to {num_classes - 1}")
    indices = np.array(labels, dtype=np.int64)
    try:
        check_labels(indices, num_classes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return indices


def read_pickle(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        content = file.read()
    try:
        check_memo_indices(content)
        found = RestrictedUnpickler(io.BytesIO(content), encoding="latin1").load()
    except ForbiddenGlobal as error:
        raise ValueError(
            f"{path} is not an original CIFAR file: it refers to {error}, which Vitreous never runs"
        ) from None
    except Exception as error:  # a damaged pickle may raise any exception
        raise ValueError(f"{path} is damaged ({error or type(error).__name__}); unpack the archive again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not an original CIFAR file: expected a dictionary, got {type(found).__name__}")
    return found


def check_memo_indices(content: bytes) -> None:
    """Refuse a pickle whose memo indices are so large that the unpickler's memo table would exhaust memory."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (number := int(argument or 0)) > len(content):
            raise ValueError(f"it has the memo index {number:,}")


class ForbiddenGlobal(Exception):
    """A pickle refers to a global outside the allow list."""


def encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Replace ``_codecs.encode``, with which Python 3 pickles bytes for Python 2."""
    if encoding != "latin1":
        raise ForbiddenGlobal(f"the codec {encoding}")
    return text.encode("latin1")


RECONSTRUCT = np.empty(0).__reduce__()[0]
ALLOWED_GLOBALS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): encode_latin1,
}


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickle numbers, strings, lists, dictionaries and arrays; refuse any other type before it is created."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_GLOBALS:
            raise ForbiddenGlobal(f"{module}.{name}")
        return ALLOWED_GLOBALS[module, name]
