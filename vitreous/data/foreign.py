"""Item access to third-party map-style datasets: any object with a length and items (image, target).

An ``OSError`` marks the image as unreadable, as in Vitreous's own datasets. Any other exception is a bug in the
dataset's code and is raised with the index of the item.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from vitreous.data.base import Dataset
from vitreous.data.foreign_targets import StoredTarget, read_target
from vitreous.data.image_files import BadImage
from vitreous.data.images import as_image

ITEM_LOCK = threading.RLock()  # datasets may share file handles and RNG state, so items are read one at a time
UNREADABLE = (OSError, SyntaxError, Image.DecompressionBombError)  # what Pillow raises for damaged files
ACCEPTED_DATA = (
    "a path, 'shapes' or 'digits', a vt.Dataset or vt.Splits, a dataset with a length whose items are (image, target), "
    "or a pair (train, valid) of these"
)
DESCRIBED = re.compile(r"^\S.* with [\d,]+ images?(; valid: .*)?$")


def is_foreign(data: Any) -> bool:
    """Return whether an object is a map-style dataset other than a Vitreous :class:`Dataset`."""
    others = (Dataset, str, bytes, Mapping, np.ndarray, Tensor, nn.Module, tuple, DataLoader, IterableDataset, type)
    return not isinstance(data, others) and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def require_dataset(data: Any) -> Dataset:
    """Return ``data`` if it is a :class:`Dataset`; otherwise raise a ``ValueError`` that lists what is accepted."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, DataLoader):
        raise ValueError(
            "data is a DataLoader, whose images are already preprocessed and batched; pass its dataset "
            "(loader.dataset) without transforms"
        )
    if isinstance(data, IterableDataset):
        raise ValueError(f"data must have a length and items by index, got the IterableDataset {type(data).__name__}")
    raise ValueError(f"data is {ACCEPTED_DATA}; got {type(data).__name__}")


def describe(data: Any) -> str:
    """Describe a dataset for a run's settings: ``torchvision.datasets.FakeData with 200 images``."""
    inner = f" of {importable_name(data.dataset)}" if isinstance(data, Subset) else ""
    return f"{importable_name(data)}{inner} with {len(data):,} image{'s' if len(data) != 1 else ''}"


def is_described(source: str) -> bool:
    """Return whether a data source in a run's settings describes a Python object, which cannot be reopened."""
    return bool(DESCRIBED.match(source))


def importable_name(data: Any) -> str:
    """Return the shortest dotted name that the object's type can be imported by."""
    kind = type(data)
    parts = kind.__module__.split(".")
    for length in range(1, len(parts) + 1):
        module = sys.modules.get(".".join(parts[:length]))
        if module is not None and getattr(module, kind.__name__, None) is kind:
            return kind.__name__ if parts[0] in ("__main__", "builtins") else f"{module.__name__}.{kind.__name__}"
    return kind.__name__


@dataclass(frozen=True)
class Items:
    """Validated access to the items of a third-party dataset."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
        image, target = self.item(index)
        try:
            return as_image(image), target
        except BadImage:
            raise
        except ValueError as error:
            raise ValueError(f"{self.location(index)}: {error}") from None

    def target(self, index: int) -> StoredTarget:
        target = self.item(index)[1]
        try:
            return read_target(target)
        except ValueError as error:
            raise ValueError(f"{self.location(index)}: {error}") from None

    def item(self, index: int) -> tuple[Any, Any]:
        try:
            with ITEM_LOCK:
                item = self.dataset[index]
        except UNREADABLE as error:
            raise BadImage(f"{type(error).__name__}: {first_line(error)}") from None
        except Exception as error:
            raise ValueError(f"{self.location(index)} raised {type(error).__name__}: {first_line(error)}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            shown = f"{type(item).__name__} of {len(item)}" if hasattr(item, "__len__") else type(item).__name__
            raise ValueError(f"{self.location(index)} must be (image, target), got {shown}")
        return item[0], item[1]

    def location(self, index: int) -> str:
        """Return the item's file if known, otherwise the dataset's name with the index."""
        dataset, index = resolve_item(self.dataset, index)
        listed = getattr(dataset, "samples", None)  # of torchvision's folders: (path, class)
        entry = listed[index] if isinstance(listed, list) and index < len(listed) else None
        if isinstance(entry, tuple) and entry and isinstance(entry[0], str):
            return entry[0]
        return f"{type(dataset).__name__}[{index}]"


def resolve_item(dataset: Any, index: int) -> tuple[Any, int]:
    """Resolve nested ``Subset`` and ``ConcatDataset``: the innermost dataset of an item, and its index there."""
    while True:
        if isinstance(dataset, Subset):
            dataset, index = dataset.dataset, int(dataset.indices[index])
        elif isinstance(dataset, ConcatDataset):
            part = int(np.searchsorted(dataset.cumulative_sizes, index, side="right"))
            index -= dataset.cumulative_sizes[part - 1] if part else 0
            dataset = dataset.datasets[part]
        else:
            return dataset, index


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else "no reason given"
