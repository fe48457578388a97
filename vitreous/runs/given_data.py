"""Data as a user of Python gives it: a path, our datasets or other people's, and what to validate on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from vitreous.data.adapter import Adapted, adapt
from vitreous.data.base import Dataset, can_learn
from vitreous.data.foreign import describe, is_foreign, need_dataset
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits, hold_out, need_two_classes
from vitreous.options import checked
from vitreous.runs.recipe import DataConfig
from vitreous.samples import Classes, Targets
from vitreous.spec import Size


@dataclass(frozen=True)
class GivenData:
    """Opened data: ``config`` says what it is called, ``by_name`` whether that is enough to open it again."""

    splits: Splits
    config: DataConfig
    by_name: bool


def open_given(
    data: Any,
    valid: Any = None,
    *,
    config: DataConfig | None = None,
    target: type[Targets] | None = None,
    image_size: Size | None = None,
    classes: tuple[str, ...] = (),
) -> GivenData:
    """Open what was given to learn from; ``valid`` is data to validate on, or the share to hold out for it.

    ``classes`` are names for numbers in foreign data that names none of its own.
    """
    config = config or DataConfig()
    train, other = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if isinstance(valid, int | float) and not isinstance(valid, bool):
        config = config.override(valid_share=checked("valid", valid, float))
    elif valid is not None:
        if other is not None:
            raise ValueError("data is a pair (train, valid) already; leave valid out, or give the training part alone")
        other = valid
    if isinstance(train, str | os.PathLike) and other is None:
        source = os.fspath(train)
        share, seed = config.valid_share, config.seed
        splits = open_data(source, target=target, valid_share=share, seed=seed, image_size=image_size)
        return GivenData(splits, config.override(source=source), by_name=True)
    name = describe_given(train) + (f"; valid: {describe_given(other)}" if other is not None else "")
    splits = open_parts(train, other, target=target, image_size=image_size, classes=classes)
    check_parts(splits, target, name)
    splits = hold_out(splits, config.valid_share, config.seed)
    return GivenData(splits, config.override(source=name), by_name=False)


def open_parts(
    train: Any, valid: Any, *, target: type[Targets] | None, image_size: Size | None, classes: tuple[str, ...]
) -> Splits:
    """Both parts as ours, other people's with one list of classes for both."""
    given = [part for part in (train, valid) if part is not None]
    ours = {place: open_part(part, target, image_size) for place, part in enumerate(given) if not is_foreign(part)}
    known = next((part.train.classes for part in ours.values()), classes)
    adapted = iter(adapt(*filter(is_foreign, given), target=target, classes=known))
    parts = [ours[place] if place in ours else as_splits(next(adapted)) for place in range(len(given))]
    if len(parts) == 1:
        return parts[0]
    return replace(parts[0], valid=parts[1].train, notes=(*parts[0].notes, *parts[1].notes))


def as_splits(data: Adapted) -> Splits:
    return Splits(data, notes=data.notes)


def open_part(part: Any, target: type[Targets] | None, image_size: Size | None) -> Splits:
    if isinstance(part, str | os.PathLike):
        return open_data(os.fspath(part), target=target, valid_share=0, image_size=image_size)
    if isinstance(part, Splits):
        return part
    return Splits(need_dataset(part))


def check_parts(splits: Splits, target: type[Targets] | None, name: str) -> None:
    train, valid = splits.train, splits.valid
    if target is not None and not can_learn(target, train):
        raise ValueError(f"{name} has {train.target.words}, the task needs {target.words}")
    if issubclass(train.target, Classes):
        need_two_classes(train.classes, name)
    if valid is not None and (valid.classes != train.classes or valid.target is not train.target):
        raise ValueError(
            f"training and validation data must have the same classes and targets, got {shown(train)} to learn from, "
            f"{shown(valid)} to validate"
        )


def shown(data: Dataset) -> str:
    return f"{data.target.words} of {len(data.classes)} ({', '.join(data.classes[:5])} …)"


def describe_given(data: Any) -> str:
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    return describe(data.train if isinstance(data, Splits) else data if is_foreign(data) else need_dataset(data))
