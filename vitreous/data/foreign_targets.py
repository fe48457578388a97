"""Parse targets of third-party datasets: class indices and names, class vectors, masks and boxes."""

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
    "a class index or name, a vector with one value per class, a mask (y, x) of class indices, or a dict with boxes "
    "and labels"
)


@dataclass(frozen=True)
class PackedMask:
    """A zlib-compressed mask: masks are mostly a few large areas."""

    shape: tuple[int, int]
    content: bytes
    largest: int  # largest class index, ignored pixels aside

    @classmethod
    def of(cls, values: NDArray[np.uint8]) -> PackedMask:
        counted = values[values != 255]
        largest = int(counted.max()) if counted.size else 0
        return cls((values.shape[0], values.shape[1]), zlib.compress(values.tobytes(), 1), largest)

    def tensor(self) -> Tensor:
        values = np.frombuffer(zlib.decompress(self.content), dtype=np.uint8)
        return torch.from_numpy(values.reshape(self.shape).copy())


@dataclass(frozen=True)
class LabeledBoxes:
    """Boxes (n, 4) as left, top, right, bottom, with class indices (n,)."""

    boxes: Tensor
    labels: Tensor


#: A parsed target: a class index, a class name, a class vector, a mask or boxes.
StoredTarget = int | str | NDArray[np.float32] | PackedMask | LabeledBoxes


def read_target(target: Any) -> StoredTarget:
    """Parse one target of a third-party dataset; raise ``ValueError`` with the accepted forms otherwise."""
    if isinstance(target, str):
        return target
    if isinstance(target, Mapping):
        return read_boxes(target)
    values = target.detach().cpu().numpy() if isinstance(target, Tensor) else np.asarray(require_array_like(target))
    if not np.issubdtype(values.dtype, np.number) and values.dtype != bool:
        raise ValueError(f"a target is {FORMS}; got {type(target).__name__}")
    while values.ndim == 3 and 1 in (values.shape[0], values.shape[-1]):
        values = values[0] if values.shape[0] == 1 else values[..., 0]
    if values.ndim == 2:
        return read_mask(values)
    single_class = np.issubdtype(values.dtype, np.integer) or values.dtype == bool
    if values.ndim == 0 or (values.shape == (1,) and single_class):
        return read_class_index(values.item())
    if values.ndim == 1 and values.size:
        return values.astype(np.float32)
    raise ValueError(f"a target is {FORMS}; got {type(target).__name__} of shape {values.shape}")


def require_array_like(target: Any) -> Any:
    """Return a target that numpy can convert to an array of numbers; refuse any other."""
    if isinstance(target, list | tuple) and not all(isinstance(value, int | float | np.number) for value in target):
        raise ValueError(f"a target is {FORMS}; got {type(target).__name__} of {len(target)} items")
    if isinstance(target, Image.Image) and len(target.getbands()) > 1:
        raise ValueError(f"a mask has one class index per pixel, got an image of {len(target.getbands())} channels")
    return target


def read_class_index(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"a class index must be a whole number, got {value}")
    return int(value)


def read_mask(values: NDArray[Any]) -> PackedMask:
    if np.issubdtype(values.dtype, np.floating):
        raise ValueError(f"a mask holds integer class indices, got {values.dtype}; convert it to uint8 without scaling")
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= 255:
        raise ValueError(
            f"a mask holds class indices from 0 to 254, and 255 for ignored pixels; got values from {values.min()} to "
            f"{values.max()}"
        )
    return PackedMask.of(np.ascontiguousarray(values.astype(np.uint8)))


def read_boxes(target: Mapping[Any, Any]) -> LabeledBoxes:
    """Parse boxes in the format of torchvision's detectors; convert a ``BoundingBoxes`` tensor to XYXY."""
    if not {"boxes", "labels"} <= set(target):
        raise ValueError(f"a dict must have boxes and labels, got {', '.join(map(str, target)) or 'nothing'}")
    boxes, labels = target["boxes"], torch.as_tensor(target["labels"], dtype=torch.int64).reshape(-1)
    if hasattr(boxes, "format"):
        from torchvision.transforms.v2.functional import convert_bounding_box_format  # slow to import

        boxes = convert_bounding_box_format(boxes, new_format="XYXY")
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    if len(boxes) != len(labels):
        raise ValueError(f"{len(boxes)} boxes, but {len(labels)} labels")
    return LabeledBoxes(boxes, labels)


def target_type(targets: Sequence[StoredTarget], wanted: type[Targets] | None) -> type[Targets]:
    """Return the common type of targets; one-hot vectors are ``Classes`` unless ``MultiLabels`` are wanted."""
    kinds = {type(target) for target in targets}
    if len(kinds) > 1:
        raise ValueError(
            f"all targets must be of one kind, got {', '.join(sorted(FORM_NAMES[kind] for kind in kinds))}"
        )
    kind = next(iter(kinds), int)
    if kind is not np.ndarray:
        return TARGET_TYPES[kind]
    rows = stack_vectors(targets)
    if wanted is not MultiLabels and np.allclose(np.nan_to_num(rows, nan=-1).sum(1), 1) and (rows >= 0).all():
        return Classes
    if not np.isin(np.nan_to_num(rows, nan=0), (0, 1)).all():
        raise ValueError("a target vector must hold 0 and 1 (NaN where unknown), or shares that sum to 1")
    return MultiLabels


TARGET_TYPES: dict[type, type[Targets]] = {int: Classes, str: Classes, PackedMask: Masks, LabeledBoxes: Boxes}
FORM_NAMES = {int: "numbers", str: "names", np.ndarray: "vectors", PackedMask: "masks", LabeledBoxes: "boxes"}


def stack_vectors(targets: Sequence[StoredTarget]) -> NDArray[np.float32]:
    lengths = {len(target) for target in targets if isinstance(target, np.ndarray)}
    if len(lengths) > 1:
        raise ValueError(f"target vectors must be equally long, one value per class; got lengths {sorted(lengths)}")
    return np.stack([target for target in targets if isinstance(target, np.ndarray)])


def min_num_classes(targets: Sequence[StoredTarget]) -> int:
    """Return the fewest classes that the targets require."""
    return max(map(min_classes_of, targets), default=0)


def min_classes_of(target: StoredTarget) -> int:
    if isinstance(target, int):
        return target + 1
    if isinstance(target, np.ndarray):
        return len(target)
    if isinstance(target, PackedMask):
        return target.largest + 1
    return int(target.labels.max()) + 1 if isinstance(target, LabeledBoxes) and len(target.labels) else 0


def names_to_indices(targets: Sequence[StoredTarget], classes: Sequence[str]) -> Sequence[StoredTarget]:
    """Convert class names to indices; check indices and vectors against the number of classes."""
    if not targets:
        return targets
    if isinstance(targets[0], str):
        number = {name: index for index, name in enumerate(classes)}
        if unknown := sorted({str(name) for name in targets} - number.keys()):
            raise ValueError(
                f"unknown class {unknown[0]!r}; the {len(classes)} known classes begin {', '.join(classes[:5])}"
            )
        return [number[str(name)] for name in targets]
    if isinstance(targets[0], int):
        check_labels(np.asarray(targets), len(classes))
    elif isinstance(targets[0], np.ndarray) and len(targets[0]) != len(classes):
        raise ValueError(f"a target vector needs one value per class ({len(classes)}), got {len(targets[0])} values")
    return targets


def collate_targets(targets: Sequence[Any], kind: type[Targets], classes: Sequence[str]) -> Targets:
    """Collate parsed targets into a batch."""
    return COLLATORS[kind](targets, len(classes))


def collate_vectors(kind: type[Classes]) -> Callable[[Sequence[Any], int], Targets]:
    def rows(targets: Sequence[Any], count: int) -> Targets:
        single_class = not len(targets) or isinstance(targets[0], int)
        return kind(torch.from_numpy(one_hot(targets, count) if single_class else np.stack(targets)))

    return rows


COLLATORS: dict[type[Targets], Callable[[Sequence[Any], int], Targets]] = {
    Classes: collate_vectors(Classes),
    MultiLabels: collate_vectors(MultiLabels),
    Masks: lambda targets, count: Masks(torch.stack([target.tensor() for target in targets])),
    Boxes: lambda targets, count: Boxes(
        tuple(target.boxes for target in targets), tuple(target.labels for target in targets)
    ),
}
