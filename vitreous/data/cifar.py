"""CIFAR-10 and CIFAR-100 (fine labels) as their authors published them: pickles, of which no code is ever run.

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
from vitreous.data.splits import Splits, need_two_classes
from vitreous.files import open_file


@dataclass(frozen=True)
class Layout:
    """The files of one of the two sets, and what they call labels and names."""

    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str


LAYOUTS = (
    Layout(
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        test="test_batch",
        meta="batches.meta",
        labels="labels",
        names="label_names",
    ),
    Layout("cifar-100-python", ("train",), test="test", meta="meta", labels="fine_labels", names="fine_label_names"),
)


def find_cifar(path: Path) -> tuple[Path, Layout] | None:
    """The folder that holds the batches, be it this one or one below."""
    below = [(path / layout.folder, layout) for layout in LAYOUTS if (path / layout.folder).is_dir()]
    if len(below) > 1:
        raise ValueError(f"{path} holds both {' and '.join(layout.folder for _, layout in below)}; give one of them")
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
        raise ValueError(f"{path} holds neither of {', '.join(layout.folder for layout in LAYOUTS)}")
    folder, layout = found
    missing = [name for name in (*layout.train, layout.test, layout.meta) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}; unpack the published archive again")
    classes = read(folder / layout.meta).get(layout.names)
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f"{folder / layout.meta} does not list the names of the classes")
    need_two_classes(classes, folder / layout.meta)
    train, test = (read_batches(folder, names, layout.labels, classes) for names in (layout.train, (layout.test,)))
    return Splits(train, test=test)


def read_batches(folder: Path, names: Sequence[str], key: str, classes: list[str]) -> Arrays:
    images, targets = [], []
    for name in names:
        batch = read(folder / name)
        pixels, labels = batch.get("data"), batch.get(key)
        if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (3072,)):
            raise ValueError(f"{folder / name} does not hold images of 32×32 pixels")
        if not isinstance(labels, list) or len(labels) != len(pixels) or not labels:
            raise ValueError(f"{folder / name} does not hold a label for each of its {len(pixels)} images")
        images.append(pixels.reshape(-1, 3, 32, 32))
        targets.append(labeled(labels, len(classes), folder / name))
    return Arrays(np.concatenate(images), np.concatenate(targets), classes)


def labeled(labels: list[Any], num_classes: int, path: Path) -> NDArray[np.int64]:
    if odd := [label for label in labels if type(label) is not int or abs(label) > 2**31]:
        raise ValueError(f"{path}: the label {str(odd[0])[:40]!r} is no class number from 0 to {num_classes - 1}")
    numbers = np.array(labels, dtype=np.int64)
    try:
        check_labels(numbers, num_classes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return numbers


def read(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        content = file.read()
    try:
        need_small_memo(content)
        found = PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Forbidden as error:
        raise ValueError(f"{path} is not what was published: it asks for {error}, which Vitreous never runs") from None
    except Exception as error:  # a damaged pickle raises whatever comes to hand
        raise ValueError(f"{path} is damaged ({error or type(error).__name__}); unpack the archive again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not what was published: it holds no dictionary")
    return found


def need_small_memo(content: bytes) -> None:
    """Refuse a pickle that remembers something under so large a number that Python's table of them fills memory."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (number := int(argument or 0)) > len(content):
            raise ValueError(f"it numbers an object {number:,}")


class Forbidden(Exception):
    """A pickle wants something that arrays do not need."""


def encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for ``_codecs.encode``, with which Python 3 pickles bytes for Python 2."""
    if encoding != "latin1":
        raise Forbidden(f"the codec {encoding}")
    return text.encode("latin1")


RECONSTRUCT = np.empty(0).__reduce__()[0]
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): encode_latin1,
}


class PlainUnpickler(pickle.Unpickler):
    """Numbers, strings, lists, dictionaries and arrays; anything else is refused before it exists."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise Forbidden(f"{module}.{name}")
        return ALLOWED[module, name]
