"""A model's specification: preprocessing, class names and task.

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
LARGEST_SIDE = 2**31  # in pixels or patches
HALF_PER_CHANNEL = (0.5, 0.5, 0.5)
MIN_CROP_RATIO = 0.05  # a smaller ratio would resize an image to more than 400 times the pixels of the crop


def pair(value: int | Iterable[int], name: str = "size") -> Size:
    """Expand an int to (height, width) and validate: ``7`` and ``(7, 7)`` both give ``(7, 7)``."""
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
    """Validate one finite number per channel."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} needs a finite number per channel, got {values!r:.80}")
    return numbers


@dataclass(frozen=True)
class Preprocess:
    """Evaluation preprocessing of a model: resize, center crop, scale to 0…1, normalize.

    Attributes:
        image_size: Size (height, width) of the input.
        crop_ratio: Side of the center crop relative to the resized image.
        interpolation: Interpolation of the resize.
        mean: Mean of each channel, for pixels in 0…1.
        std: Standard deviation of each channel.
        fit: ``"crop"`` for a center crop; ``"letterbox"`` resizes the whole image to fit and pads it with the mean.

    >>> vt.Preprocess(image_size=384, crop_ratio=1.0, interpolation="bicubic")
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
        if not known or not MIN_CROP_RATIO <= self.crop_ratio <= 1:
            raise ValueError(f"crop_ratio must lie in [{MIN_CROP_RATIO}, 1], got {self.crop_ratio!r:.80}")
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
        """Adapt to another number of channels, each with the average of the known means and deviations."""
        if num_channels == self.num_channels:
            return self
        mean, std = sum(self.mean) / len(self.mean), sum(self.std) / len(self.std)
        return replace(self, mean=(mean,) * num_channels, std=(std,) * num_channels)


@dataclass(frozen=True)
class Labels:
    """Class names in the order of the logits; empty if unknown."""

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(str(name) for name in self.names))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, index: int) -> str:
        """Return a class's name, or ``class 7`` if names are unknown."""
        return self.names[index] if self.names else f"class {index}"

    def check(self, num_classes: int) -> None:
        if self.names and len(self.names) != num_classes:
            raise ValueError(
                f"{len(self.names)} class names for {num_classes} classes; "
                f"give one name per class, or call reset_head({len(self.names)}) first"
            )


@dataclass(frozen=True)
class Spec:
    """Everything besides config and weights that prediction requires; stored in every checkpoint.

    Attributes:
        preprocess: Preprocessing of the images.
        labels: Class names.
        task: Name of the task (a key of ``tasks.TASKS``) that decodes the outputs: softmax or sigmoid, boxes or masks.
    """

    preprocess: Preprocess = field(default_factory=Preprocess)
    labels: Labels = field(default_factory=Labels)
    task: str = "classify"

    def to_json(self) -> dict[str, Any]:
        return {"preprocess": asdict(self.preprocess), "labels": list(self.labels.names), "task": self.task}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Read a spec from JSON; files of format 1 have no task and hold classifiers."""
        if not isinstance(data["labels"], list | tuple):
            raise ValueError(f"labels must be a list of names, got {data['labels']!r:.80}")
        return cls(Preprocess(**data["preprocess"]), Labels(tuple(data["labels"])), str(data.get("task", "classify")))
