"""Inputs, targets and batches: the data structures shared by datasets, tasks and models.

Targets are always batched, one entry per image; the target of a single image is a batch of one. Masks and boxes are
transformed with their image: :meth:`Targets.apply_views` applies crops, resizes and flips, :meth:`Targets.warp` the
geometric operations of RandAugment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitreous.spec import Size

IGNORED = 255  # mask value of pixels excluded from loss and metrics
Warp = Callable[[Any], Any]  # a geometric operation on a tv_tensor


class ViewLike(Protocol):
    """The interface of a view (``data/view.py``) that targets use."""

    @property
    def source(self) -> Size: ...

    @property
    def size(self) -> Size: ...

    def mask(self, mask: Tensor) -> Tensor: ...

    def boxes(self, boxes: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Inputs:
    """Inputs of a model.

    Attributes:
        images: Images (b, c, y, x), or (b, v, c, y, x) for v views of each scene.
        texts: Token ids (b, t).
        cameras: Projection matrices (b, v, 3, 4) of the views.
    """

    images: Float[Tensor, "b c y x"] | Float[Tensor, "b v c y x"]
    texts: Int[Tensor, "b t"] | None = None
    cameras: Float[Tensor, "b v 3 4"] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def map(self, function: Callable[[Tensor], Tensor]) -> Inputs:
        """Apply a function to every tensor."""
        texts, cameras = (None if value is None else function(value) for value in (self.texts, self.cameras))
        return Inputs(function(self.images), texts, cameras)


class Targets(ABC):
    """Targets of a batch of images; each subclass is one type of target.

    Attributes:
        description: The type of target in error messages, e.g. "a mask per image".
        mixable: Whether MixUp and CutMix can blend two targets.
        geometric: Whether targets have coordinates in the image, and are transformed with it.
    """

    description: ClassVar[str]
    mixable: ClassVar[bool] = False
    geometric: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Any) -> Self:
        """Select rows of the batch, by slice or index."""

    @classmethod
    @abstractmethod
    def cat(cls, parts: Sequence[Any]) -> Targets:
        """Concatenate batches of this type."""

    def to(self, device: str) -> Self:
        return self

    def check(self, sizes: Sequence[Size], num_classes: int) -> None:  # noqa: B027
        """Raise ``ValueError`` if targets do not match images of these sizes, or a class is out of range."""

    def apply_views(self, views: Sequence[ViewLike]) -> Self:
        """Return the targets after each image was transformed by its view."""
        return self

    def warp(self, rows: Tensor, move: Warp, size: Size) -> Self:
        """Return the targets after ``move`` was applied to the images ``rows``, which have the size ``size``."""
        return self


@dataclass(frozen=True)
class Classes(Targets):
    """One class per image, as class vectors (b, k): one-hot, or shares that sum to 1."""

    values: Float[Tensor, "b k"]
    description: ClassVar[str] = "one class per image"
    mixable: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Any) -> Self:
        return replace(self, values=self.values[rows])

    @classmethod
    def cat(cls, parts: Sequence[Classes]) -> Classes:
        return cls(torch.cat([part.values for part in parts]))

    def to(self, device: str) -> Self:
        return replace(self, values=self.values.to(device, non_blocking=True))

    def check(self, sizes: Sequence[Size], num_classes: int) -> None:
        if self.values.shape != (len(sizes), num_classes):
            raise ValueError(
                f"{len(sizes)} images of {num_classes} classes need targets of shape {(len(sizes), num_classes)}, "
                f"got shape {tuple(self.values.shape)}"
            )


@dataclass(frozen=True)
class MultiLabels(Classes):
    """Any number of labels per image, as vectors (b, k) of ones and zeros, with NaN for unknown labels."""

    description: ClassVar[str] = "several labels per image"


@dataclass(frozen=True)
class Masks(Targets):
    """Segmentation masks (b, y, x) of class indices; 255 is ignored."""

    values: UInt8[Tensor, "b y x"]
    description: ClassVar[str] = "a mask per image"
    geometric: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Any) -> Self:
        return replace(self, values=self.values[rows])

    @classmethod
    def cat(cls, parts: Sequence[Masks]) -> Masks:
        return cls(torch.cat([part.values for part in parts]))

    def to(self, device: str) -> Self:
        return replace(self, values=self.values.to(device, non_blocking=True))

    def check(self, sizes: Sequence[Size], num_classes: int) -> None:
        for mask, size in zip(self.values, sizes, strict=True):
            if tuple(mask.shape) != tuple(size):
                raise ValueError(
                    f"a mask must have the size of its image, got {mask.shape[0]}×{mask.shape[1]} pixels for an image "
                    f"of {size[0]}×{size[1]}"
                )
        wrong = self.values[(self.values >= num_classes) & (self.values != IGNORED)]
        if len(wrong):
            raise ValueError(
                f"a mask holds the value {int(wrong[0])}, but there are {num_classes} classes, numbered 0 to "
                f"{num_classes - 1}; {IGNORED} is ignored"
            )

    def apply_views(self, views: Sequence[ViewLike]) -> Self:
        seen = [view.mask(mask) for mask, view in zip(self.values, views, strict=True)]
        return replace(self, values=torch.stack(seen))

    def warp(self, rows: Tensor, move: Warp, size: Size) -> Self:
        from torchvision import tv_tensors  # slow to import, and every model imports this module

        values = self.values.clone()
        values[rows] = torch.as_tensor(move(tv_tensors.Mask(values[rows])))
        return replace(self, values=values)


@dataclass(frozen=True)
class Boxes(Targets):
    """Bounding boxes: for each image, boxes (n, 4) as left, top, right, bottom in pixels, and class indices (n,)."""

    boxes: tuple[Float[Tensor, "n 4"], ...]
    classes: tuple[Int[Tensor, " n"], ...]
    description: ClassVar[str] = "boxes with classes"
    geometric: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.boxes)

    def take(self, rows: Any) -> Self:
        chosen = torch.arange(len(self))[rows].reshape(-1).tolist()
        return replace(
            self, boxes=tuple(self.boxes[row] for row in chosen), classes=tuple(self.classes[row] for row in chosen)
        )

    @classmethod
    def cat(cls, parts: Sequence[Boxes]) -> Boxes:
        boxes, classes = ([item for part in parts for item in getattr(part, name)] for name in ("boxes", "classes"))
        return cls(tuple(boxes), tuple(classes))

    def to(self, device: str) -> Self:
        moved = {
            name: tuple(item.to(device, non_blocking=True) for item in getattr(self, name))
            for name in ("boxes", "classes")
        }
        return replace(self, **moved)

    def check(self, sizes: Sequence[Size], num_classes: int) -> None:
        for boxes, classes, (height, width) in zip(self.boxes, self.classes, sizes, strict=True):
            if boxes.shape != (len(classes), 4):
                raise ValueError(
                    f"{len(classes)} objects need boxes of shape {(len(classes), 4)}, got {tuple(boxes.shape)}"
                )
            left, top, right, bottom = boxes.unbind(1)
            inside = (left >= 0) & (top >= 0) & (right <= width) & (bottom <= height) & (left < right) & (top < bottom)
            if not bool(inside.all()):
                wrong = [round(value, 1) for value in boxes[~inside][0].tolist()]
                raise ValueError(
                    f"the box {wrong} (left, top, right, bottom) is empty or exceeds its image of {height}×{width} "
                    "pixels (height×width); clip or drop it"
                )
            if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
                raise ValueError(f"a box has a class outside 0 to {num_classes - 1}: {classes.tolist()}")

    def apply_views(self, views: Sequence[ViewLike]) -> Self:
        moved = [view.boxes(boxes) for boxes, view in zip(self.boxes, views, strict=True)]
        return self.drop_empty([clip_boxes(boxes, view.size) for boxes, view in zip(moved, views, strict=True)])

    def warp(self, rows: Tensor, move: Warp, size: Size) -> Self:
        from torchvision import tv_tensors

        boxes = list(self.boxes)
        for row in rows.tolist():
            framed = tv_tensors.BoundingBoxes(boxes[row], format="XYXY", canvas_size=size, clamping_mode=None)
            boxes[row] = clip_boxes(torch.as_tensor(move(framed)), size)
        return self.drop_empty(boxes)

    def drop_empty(self, boxes: Sequence[Tensor]) -> Self:
        """Replace the boxes, dropping those without area."""
        seen = [(item[:, 2] > item[:, 0]) & (item[:, 3] > item[:, 1]) for item in boxes]
        return replace(
            self,
            boxes=tuple(item[keep] for item, keep in zip(boxes, seen, strict=True)),
            classes=tuple(item[keep] for item, keep in zip(self.classes, seen, strict=True)),
        )


@dataclass(frozen=True)
class Texts(Targets):
    """A caption per image, as text; the task tokenizes it."""

    texts: tuple[str, ...]
    description: ClassVar[str] = "a caption per image"

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Any) -> Self:
        chosen = torch.arange(len(self))[rows].reshape(-1).tolist()
        return replace(self, texts=tuple(self.texts[row] for row in chosen))

    @classmethod
    def cat(cls, parts: Sequence[Texts]) -> Texts:
        return cls(tuple(text for part in parts for text in part.texts))


@dataclass(frozen=True)
class Batch:
    """Inputs with their targets; ``views`` map each image to its source image, if known."""

    inputs: Inputs
    targets: Targets
    views: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def images(self) -> Tensor:
        return self.inputs.images

    def to(self, device: str) -> Batch:
        moved = self.inputs.map(lambda tensor: tensor.to(device, non_blocking=True))
        return Batch(moved, self.targets.to(device), self.views)

    def take(self, rows: slice) -> Batch:
        return Batch(self.inputs.map(lambda tensor: tensor[rows]), self.targets.take(rows), self.views[rows])

    def split(self, parts: int) -> list[Batch]:
        """Split the batch into equal parts, e.g. for gradient accumulation."""
        size, left = divmod(len(self), parts)
        if left:
            raise ValueError(
                f"this process's {len(self)} images of a batch cannot be split into {parts} equal parts; "
                "choose a train.accumulate that divides them"
            )
        return [self.take(slice(start, start + size)) for start in range(0, len(self), size)]


def clip_boxes(boxes: Float[Tensor, "n 4"], size: Size) -> Float[Tensor, "n 4"]:
    """Clip boxes to an image of ``size``."""
    limits = boxes.new_tensor([size[1], size[0], size[1], size[0]])
    return boxes.clamp(min=0).minimum(limits)
