"""What a model knows about the world outside it: how images are prepared and what its classes are called.

Plain dataclasses without torch, so that every module may import them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from typing import Any, Literal, get_args

Size = tuple[int, int]
Interpolation = Literal["nearest", "bilinear", "bicubic"]
Fit = Literal["crop", "letterbox"]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LARGEST_SIDE = 2**31  # of anything measured in pixels or cells
HALF = (0.5, 0.5, 0.5)
LEAST_CROP = 0.05  # of an image's side; less would resize it to 400 times the pixels that are seen


def pair(value: int | Iterable[int], name: str = "size") -> Size:
    """``7`` and ``(7, 7)`` both mean height 7, width 7."""
    height = width = None
    try:
        height, width = value if isinstance(value, Iterable) else (value, value)
        both = operator.index(height), operator.index(width)
    except (TypeError, ValueError):
        both = (0, 0)
    if min(both) < 1 or max(both) > LARGEST_SIDE or any(isinstance(part, bool) for part in (value, height, width)):
        raise ValueError(f"{name} must be a positive int or (height, width), got {value!r}")
    return both


def channel_values(values: Iterable[float], name: str) -> tuple[float, ...]:
    """A finite number for each channel."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} needs a finite number per channel, got {values!r:.80}")
    return numbers


@dataclass(frozen=True)
class Preprocess:
    """From an image to a tensor: resize so that the crop is ``crop_ratio`` of it, center crop, scale, normalize.

    With ``fit="letterbox"`` nothing is cut off: the whole image is resized to fit, and the rest filled with the mean.
    """

    image_size: Size = (224, 224)
    crop_ratio: float = 0.875
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    fit: Fit = "crop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair(self.image_size, "image_size"))
        for name in ("mean", "std"):
            object.__setattr__(self, name, channel_values(getattr(self, name), name))
        known = isinstance(self.crop_ratio, Real) and not isinstance(self.crop_ratio, bool)
        if not known or not LEAST_CROP <= self.crop_ratio <= 1:
            raise ValueError(f"crop_ratio must lie in [{LEAST_CROP}, 1], got {self.crop_ratio!r:.80}")
        if self.interpolation not in get_args(Interpolation):
            raise ValueError(f"interpolation must be one of {get_args(Interpolation)}, got {self.interpolation!r}")
        if self.fit not in get_args(Fit):
            raise ValueError(f"fit must be one of {get_args(Fit)}, got {self.fit!r}")
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise ValueError(
                f"mean and std need one value per channel and std > 0, got mean={self.mean}, std={self.std}"
            )

    @property
    def num_channels(self) -> int:
        return len(self.mean)

    def with_channels(self, num_channels: int) -> Preprocess:
        """The same for another number of channels: each gets the average of the known means and deviations."""
        if num_channels == self.num_channels:
            return self
        mean, std = sum(self.mean) / len(self.mean), sum(self.std) / len(self.std)
        return replace(self, mean=(mean,) * num_channels, std=(std,) * num_channels)


@dataclass(frozen=True)
class Labels:
    """Class names in the order of the logits; empty when nobody has named them."""

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(str(name) for name in self.names))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, index: int) -> str:
        """A class's name, or a stand-in for one that nobody has named."""
        return self.names[index] if self.names else f"class {index}"

    def check(self, num_classes: int) -> None:
        if self.names and len(self.names) != num_classes:
            raise ValueError(
                f"{len(self.names)} class names for {num_classes} classes; "
                f"give one name per class, or call reset_head({len(self.names)}) first"
            )


@dataclass(frozen=True)
class Spec:
    """Everything a weights file must say beside config and weights, so that an image gives an answer.

    ``task`` names the task (a key of ``tasks.TASKS``) that knows what the outputs mean: softmax or sigmoid, boxes or
    masks.
    """

    preprocess: Preprocess = field(default_factory=Preprocess)
    labels: Labels = field(default_factory=Labels)
    task: str = "classify"

    def to_json(self) -> dict[str, Any]:
        return {"preprocess": asdict(self.preprocess), "labels": list(self.labels.names), "task": self.task}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Files of format 1 say no task: they hold classifiers."""
        if not isinstance(data["labels"], list | tuple):
            raise ValueError(f"labels must be a list of names, got {data['labels']!r:.80}")
        return cls(Preprocess(**data["preprocess"]), Labels(tuple(data["labels"])), str(data.get("task", "classify")))
