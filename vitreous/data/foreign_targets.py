"""What other people's datasets call a target, read as ours: class numbers and names, vectors, masks, boxes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.base import check_labels, one_hot
from vitreous.samples import Boxes, Classes, Masks, MultiLabels, Targets

FORMS = (
    "a class's number or name, a vector with one value per class, a mask (y, x) of class numbers, or a dict with boxes "
    "and labels"
)


@dataclass(frozen=True)
class PackedMask:
    """A class per pixel, compressed: masks are mostly a few large areas."""

    shape: tuple[int, int]
    content: bytes
    largest: int  # of the values that count

    @classmethod
    def of(cls, values: NDArray[np.uint8]) -> PackedMask:
        counted = values[values != 255]
        largest = int(counted.max()) if counted.size else 0
        return cls((values.shape[0], values.shape[1]), zlib.compress(values.tobytes(), 1), largest)

    def tensor(self) -> Tensor:
        values = np.frombuffer(zlib.decompress(self.content), dtype=np.uint8)
        return torch.from_numpy(values.reshape(self.shape).copy())


@dataclass(frozen=True)
class Found:
    """Boxes (n, 4) as left, top, right, bottom, with the class numbers (n,) of what they hold."""

    boxes: Tensor
    labels: Tensor


#: A target as it is kept: a class number, a class name, a vector, a mask or boxes.
Kept = int | str | NDArray[np.float32] | PackedMask | Found


def read_target(target: Any) -> Kept:
    """One target of a foreign dataset; a ``ValueError`` says what it should be."""
    if isinstance(target, str):
        return target
    if isinstance(target, Mapping):
        return read_boxes(target)
    values = target.detach().cpu().numpy() if isinstance(target, Tensor) else np.asarray(as_grid(target))
    if not np.issubdtype(values.dtype, np.number) and values.dtype != bool:
        raise ValueError(f"a target is {FORMS}; got {type(target).__name__}")
    while values.ndim == 3 and 1 in (values.shape[0], values.shape[-1]):
        values = values[0] if values.shape[0] == 1 else values[..., 0]
    if values.ndim == 2:
        return read_mask(values)
    whole = np.issubdtype(values.dtype, np.integer) or values.dtype == bool
    if values.ndim == 0 or (values.shape == (1,) and whole):
        return read_number(values.item())
    if values.ndim == 1 and values.size:
        return values.astype(np.float32)
    raise ValueError(f"a target is {FORMS}; got {type(target).__name__} of shape {values.shape}")


def as_grid(target: Any) -> Any:
    """What numpy can make an array of."""
    if isinstance(target, list | tuple) and not all(isinstance(value, int | float | np.number) for value in target):
        raise ValueError(f"a target is {FORMS}; got {type(target).__name__} of {len(target)} things")
    if isinstance(target, Image.Image) and len(target.getbands()) > 1:
        raise ValueError(f"a mask has one class number per pixel, got an image of {len(target.getbands())} bands")
    return target


def read_number(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"a class's number is whole, got {value}")
    return int(value)


def read_mask(values: NDArray[Any]) -> PackedMask:
    if np.issubdtype(values.dtype, np.floating):
        raise ValueError(f"a mask holds whole class numbers, got {values.dtype}; convert it to uint8 without scaling")
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= 255:
        raise ValueError(
            f"a mask holds class numbers from 0 to 254, and 255 where nothing counts; got {values.min()} to "
            f"{values.max()}"
        )
    return PackedMask.of(np.ascontiguousarray(values.astype(np.uint8)))


def read_boxes(target: Mapping[Any, Any]) -> Found:
    """As torchvision's detectors take them; boxes that know their format are converted."""
    if not {"boxes", "labels"} <= set(target):
        raise ValueError(f"a dict must have boxes and labels, got {', '.join(map(str, target)) or 'nothing'}")
    boxes, labels = target["boxes"], torch.as_tensor(target["labels"], dtype=torch.int64).reshape(-1)
    if hasattr(boxes, "format"):
        from torchvision.transforms.v2.functional import convert_bounding_box_format  # slow to import

        boxes = convert_bounding_box_format(boxes, new_format="XYXY")
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    if len(boxes) != len(labels):
        raise ValueError(f"{len(boxes)} boxes, but {len(labels)} labels")
    return Found(boxes, labels)


def kind_of(targets: Sequence[Kept], wanted: type[Targets] | None) -> type[Targets]:
    """The kind that they all have: vectors with a single one are classes, unless several labels are wanted."""
    kinds = {type(target) for target in targets}
    if len(kinds) > 1:
        raise ValueError(f"all targets must be of one kind, got {', '.join(sorted(WORDS[kind] for kind in kinds))}")
    kind = next(iter(kinds), int)
    if kind is not np.ndarray:
        return KINDS[kind]
    rows = as_rows(targets)
    if wanted is not MultiLabels and np.allclose(np.nan_to_num(rows, nan=-1).sum(1), 1) and (rows >= 0).all():
        return Classes
    if not np.isin(np.nan_to_num(rows, nan=0), (0, 1)).all():
        raise ValueError("a vector holds 0 and 1 (NaN where unknown), or shares that sum to 1")
    return MultiLabels


KINDS: dict[type, type[Targets]] = {int: Classes, str: Classes, PackedMask: Masks, Found: Boxes}
WORDS = {int: "numbers", str: "names", np.ndarray: "vectors", PackedMask: "masks", Found: "boxes"}


def as_rows(targets: Sequence[Kept]) -> NDArray[np.float32]:
    lengths = {len(target) for target in targets if isinstance(target, np.ndarray)}
    if len(lengths) > 1:
        raise ValueError(f"target vectors must be equally long, one value per class; got lengths {sorted(lengths)}")
    return np.stack([target for target in targets if isinstance(target, np.ndarray)])


def num_classes(targets: Sequence[Kept]) -> int:
    """The fewest classes that these targets can be of."""
    return max(map(at_least, targets), default=0)


def at_least(target: Kept) -> int:
    if isinstance(target, int):
        return target + 1
    if isinstance(target, np.ndarray):
        return len(target)
    if isinstance(target, PackedMask):
        return target.largest + 1
    return int(target.labels.max()) + 1 if isinstance(target, Found) and len(target.labels) else 0


def numbered(targets: Sequence[Kept], classes: Sequence[str]) -> Sequence[Kept]:
    """Names as numbers; numbers and vectors that are checked against the classes there are."""
    if not targets:
        return targets
    if isinstance(targets[0], str):
        number = {name: index for index, name in enumerate(classes)}
        if unknown := sorted({str(name) for name in targets} - number.keys()):
            raise ValueError(
                f"the class {unknown[0]!r} is not among the {len(classes)} known: {', '.join(classes[:5])}"
            )
        return [number[str(name)] for name in targets]
    if isinstance(targets[0], int):
        check_labels(np.asarray(targets), len(classes))
    elif isinstance(targets[0], np.ndarray) and len(targets[0]) != len(classes):
        raise ValueError(f"a vector of {len(targets[0])} values does not fit {len(classes)} classes")
    return targets


def join(targets: Sequence[Any], kind: type[Targets], classes: Sequence[str]) -> Targets:
    """Kept targets as a batch."""
    return JOINS[kind](targets, len(classes))


def join_rows(kind: type[Classes]) -> Callable[[Sequence[Any], int], Targets]:
    def rows(targets: Sequence[Any], count: int) -> Targets:
        whole = not len(targets) or isinstance(targets[0], int)
        return kind(torch.from_numpy(one_hot(targets, count) if whole else np.stack(targets)))

    return rows


JOINS: dict[type[Targets], Callable[[Sequence[Any], int], Targets]] = {
    Classes: join_rows(Classes),
    MultiLabels: join_rows(MultiLabels),
    Masks: lambda targets, count: Masks(torch.stack([target.tensor() for target in targets])),
    Boxes: lambda targets, count: Boxes(
        tuple(target.boxes for target in targets), tuple(target.labels for target in targets)
    ),
}
