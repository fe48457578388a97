"""What passes between data, task and model: inputs, targets, and batches of both.

A set of targets always stands for a batch, one entry per image; a single image's target is a batch of one. Coordinates
and maps follow the image: :meth:`Targets.through` applies the views that the images went through, and
:meth:`Targets.warp` the geometric operations of RandAugment.
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

IGNORED = 255  # mask value of pixels that count neither in the loss nor in a metric
Warp = Callable[[Any], Any]  # a geometric operation on a tv_tensor


class Geometry(Protocol):
    """What targets must know of a view (``data/view.py``)."""

    @property
    def source(self) -> Size: ...

    @property
    def size(self) -> Size: ...

    def mask(self, mask: Tensor) -> Tensor: ...

    def boxes(self, boxes: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Inputs:
    """What a model sees: images (b, c, y, x), or (b, v, c, y, x) for v views of one scene, with whatever else it takes.

    ``texts`` are token ids, ``cameras`` the projection matrices of the views.
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
    """What a batch of images should give. A subclass is one kind of target and names itself for error messages."""

    words: ClassVar[str]
    mixable: ClassVar[bool] = False  # whether MixUp and CutMix can blend two of them
    geometric: ClassVar[bool] = False  # whether they have places in the image

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Any) -> Self:
        """Some rows of the batch, by slice or by index."""

    @classmethod
    @abstractmethod
    def cat(cls, parts: Sequence[Any]) -> Targets:
        """Join batches of this kind."""

    def to(self, device: str) -> Self:
        return self

    def check(self, sizes: Sequence[Size], num_classes: int) -> None:  # noqa: B027
        """Refuse targets that do not fit images of these sizes, or name a class that does not exist."""

    def through(self, views: Sequence[Geometry]) -> Self:
        """The same targets after each image went through its view."""
        return self

    def warp(self, rows: Tensor, move: Warp, size: Size) -> Self:
        """The same targets after ``move`` was applied to some images of ``size``."""
        return self


@dataclass(frozen=True)
class Classes(Targets):
    """One class per image: each row holds the share of every class, mostly a single one."""

    values: Float[Tensor, "b k"]
    words: ClassVar[str] = "one class per image"
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
                f"got {tuple(self.values.shape)}"
            )


@dataclass(frozen=True)
class MultiLabels(Classes):
    """Any number of labels per image: ones and zeros, NaN where a label is unknown."""

    words: ClassVar[str] = "several labels per image"


@dataclass(frozen=True)
class Masks(Targets):
    """A class per pixel; 255 is ignored. All maps of a batch have one size."""

    values: UInt8[Tensor, "b y x"]
    words: ClassVar[str] = "a mask per image"
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
                    f"a mask of {mask.shape[0]}×{mask.shape[1]} pixels belongs to an image of {size[0]}×{size[1]}; "
                    "both must have the same size"
                )
        wrong = self.values[(self.values >= num_classes) & (self.values != IGNORED)]
        if len(wrong):
            raise ValueError(
                f"a mask holds the value {int(wrong[0])}, which is no class: there are {num_classes}, numbered 0 to "
                f"{num_classes - 1}, and {IGNORED} is ignored"
            )

    def through(self, views: Sequence[Geometry]) -> Self:
        seen = [view.mask(mask) for mask, view in zip(self.values, views, strict=True)]
        return replace(self, values=torch.stack(seen))

    def warp(self, rows: Tensor, move: Warp, size: Size) -> Self:
        from torchvision import tv_tensors  # here, since it takes long to import, and models import this file

        values = self.values.clone()
        values[rows] = torch.as_tensor(move(tv_tensors.Mask(values[rows])))
        return replace(self, values=values)


@dataclass(frozen=True)
class Boxes(Targets):
    """Objects with their classes: boxes (n, 4) as left, top, right, bottom in pixels of the image, n per image."""

    boxes: tuple[Float[Tensor, "n 4"], ...]
    classes: tuple[Int[Tensor, " n"], ...]
    words: ClassVar[str] = "boxes with classes"
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
                raise ValueError(f"{len(classes)} objects need boxes of shape {(len(classes), 4)}, got {boxes.shape}")
            left, top, right, bottom = boxes.unbind(1)
            inside = (left >= 0) & (top >= 0) & (right <= width) & (bottom <= height) & (left < right) & (top < bottom)
            if not bool(inside.all()):
                wrong = [round(value, 1) for value in boxes[~inside][0].tolist()]
                raise ValueError(
                    f"the box {wrong} (left, top, right, bottom) is empty or leaves its image of {height}×{width} "
                    "pixels (height×width); clip or drop it"
                )
            if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
                raise ValueError(f"a box has a class outside 0 to {num_classes - 1}: {classes.tolist()}")

    def through(self, views: Sequence[Geometry]) -> Self:
        moved = [view.boxes(boxes) for boxes, view in zip(self.boxes, views, strict=True)]
        return self.kept([clipped(boxes, view.size) for boxes, view in zip(moved, views, strict=True)])

    def warp(self, rows: Tensor, move: Warp, size: Size) -> Self:
        from torchvision import tv_tensors

        boxes = list(self.boxes)
        for row in rows.tolist():
            framed = tv_tensors.BoundingBoxes(boxes[row], format="XYXY", canvas_size=size, clamping_mode=None)
            boxes[row] = clipped(torch.as_tensor(move(framed)), size)
        return self.kept(boxes)

    def kept(self, boxes: Sequence[Tensor]) -> Self:
        """Only the boxes that still have an area."""
        seen = [(item[:, 2] > item[:, 0]) & (item[:, 3] > item[:, 1]) for item in boxes]
        return replace(
            self,
            boxes=tuple(item[keep] for item, keep in zip(boxes, seen, strict=True)),
            classes=tuple(item[keep] for item, keep in zip(self.classes, seen, strict=True)),
        )


@dataclass(frozen=True)
class Texts(Targets):
    """A caption per image, as text: the task's own tokenizer turns it into tokens."""

    texts: tuple[str, ...]
    words: ClassVar[str] = "a caption per image"

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
    """Inputs with their targets; ``views`` say which part of its source each image shows, where that is known."""

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
        """Equal parts, in order."""
        size, left = divmod(len(self), parts)
        if left:
            raise ValueError(
                f"{len(self)} images, this process's share of a batch, cannot be computed in {parts} equal parts; "
                "choose train.accumulate that divides them"
            )
        return [self.take(slice(start, start + size)) for start in range(0, len(self), size)]


def clipped(boxes: Float[Tensor, "n 4"], size: Size) -> Float[Tensor, "n 4"]:
    """Cut off what lies outside an image of ``size``."""
    limits = boxes.new_tensor([size[1], size[0], size[1], size[0]])
    return boxes.clamp(min=0).minimum(limits)
