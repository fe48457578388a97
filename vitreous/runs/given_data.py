"""Open the ``data`` and ``valid`` arguments of ``vt.train``: paths, Vitreous datasets or third-party datasets."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from vitreous.data.adapter import AdaptedDataset, adapt
from vitreous.data.base import Dataset, provides_target
from vitreous.data.foreign import describe, is_foreign, require_dataset
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits, hold_out, require_two_classes
from vitreous.options import checked
from vitreous.runs.recipe import DataConfig
from vitreous.samples import Classes, Targets
from vitreous.spec import Size


@dataclass(frozen=True)
class GivenData:
    """Opened data; ``reopenable`` if ``config.source`` suffices to open it again."""

    splits: Splits
    config: DataConfig
    reopenable: bool


def open_data_argument(
    data: Any,
    valid: Any = None,
    *,
    config: DataConfig | None = None,
    target: type[Targets] | None = None,
    image_size: Size | None = None,
    classes: tuple[str, ...] = (),
) -> GivenData:
    """Open training data, and validation data or the fraction to hold out (``valid``).

    ``classes`` names the classes of a third-party dataset that has class indices only.
    """
    config = config or DataConfig()
    train, other = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if isinstance(valid, int | float) and not isinstance(valid, bool):
        config = config.override(valid_share=checked("valid", valid, float))
    elif valid is not None:
        if other is not None:
            raise ValueError("data is a pair (train, valid) already; omit valid, or pass only the training data")
        other = valid
    if isinstance(train, str | os.PathLike) and other is None:
        source = os.fspath(train)
        share, seed = config.valid_share, config.seed
        splits = open_data(source, target=target, valid_share=share, seed=seed, image_size=image_size)
        return GivenData(splits, config.override(source=source), reopenable=True)
    name = describe_given(train) + (f"; valid: {describe_given(other)}" if other is not None else "")
    splits = open_parts(train, other, target=target, image_size=image_size, classes=classes)
    check_parts(splits, target, name)
    splits = hold_out(splits, config.valid_share, config.seed)
    return GivenData(splits, config.override(source=name), reopenable=False)


def open_parts(
    train: Any, valid: Any, *, target: type[Targets] | None, image_size: Size | None, classes: tuple[str, ...]
) -> Splits:
    """Open training and validation data as Vitreous datasets; third-party datasets get one common list of classes."""
    given = [part for part in (train, valid) if part is not None]
    native = {index: open_part(part, target, image_size) for index, part in enumerate(given) if not is_foreign(part)}
    known = next((part.train.classes for part in native.values()), classes)
    adapted = iter(adapt(*filter(is_foreign, given), target=target, classes=known))
    parts = [native[index] if index in native else as_splits(next(adapted)) for index in range(len(given))]
    if len(parts) == 1:
        return parts[0]
    return replace(parts[0], valid=parts[1].train, notes=(*parts[0].notes, *parts[1].notes))


def as_splits(data: AdaptedDataset) -> Splits:
    return Splits(data, notes=data.notes)


def open_part(part: Any, target: type[Targets] | None, image_size: Size | None) -> Splits:
    if isinstance(part, str | os.PathLike):
        return open_data(os.fspath(part), target=target, valid_share=0, image_size=image_size)
    if isinstance(part, Splits):
        return part
    return Splits(require_dataset(part))


def check_parts(splits: Splits, target: type[Targets] | None, name: str) -> None:
    """Raise if the data does not suit the task, or training and validation data do not match."""
    train, valid = splits.train, splits.valid
    if target is not None and not provides_target(target, train):
        raise ValueError(f"{name} has {train.target.description}, the task needs {target.description}")
    if issubclass(train.target, Classes):
        require_two_classes(train.classes, name)
    if valid is not None and (valid.classes != train.classes or valid.target is not train.target):
        raise ValueError(
            f"training and validation data must have the same classes and targets, got "
            f"{describe_dataset(train)} for training, {describe_dataset(valid)} for validation"
        )


def describe_dataset(data: Dataset) -> str:
    return f"{data.target.description} of {len(data.classes)} ({', '.join(data.classes[:5])} …)"


def describe_given(data: Any) -> str:
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    return describe(data.train if isinstance(data, Splits) else data if is_foreign(data) else require_dataset(data))
