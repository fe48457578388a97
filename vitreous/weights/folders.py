"""Folders that hold a model: a run's, those that transformers and timm write, and weights cut into several files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.files import CannotRead
from vitreous.weights.bounds import check_blocks
from vitreous.weights.described import Described, describe_model, read_json
from vitreous.weights.reading import WeightsFile, read_file, shorten

#: In the order in which they are taken; an index lists the files that hold the tensors.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def read_folder(folder: Path) -> WeightsFile:
    """What Vitreous wrote says all by itself; beside other weights a ``config.json`` may say which model they are."""
    name = next((name for name in WEIGHTS if os.path.lexists(folder / name)), None)
    if name is None:
        raise ValueError(f"{folder} is a folder without weights ({', '.join(WEIGHTS[::2])}): {contents(folder)}")
    file = read_shards(folder, name) if name.endswith(".json") else read_file(folder / name)
    if file.spec is not None:
        return file
    found = describe_model(folder) if os.path.lexists(folder / "config.json") else Described()
    try:
        check_blocks(found.config, len(file.tensors))
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    return replace(
        file, config=found.config, spec=found.spec, unknown=found.unknown, notes=file.notes + found.notes, foreign=True
    )


def contents(folder: Path) -> str:
    try:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(folder))
    except OSError as error:
        raise CannotRead(error.errno, error.strerror, str(folder)) from None
    return f"it holds {shorten(names)}; name the weights file itself" if names else "it is empty"


def read_shards(folder: Path, name: str) -> WeightsFile:
    """Weights in several files, beside an index that says which tensor lies where."""
    where = weight_map(folder / name)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(where.values())):
        if not os.path.lexists(folder / shard):
            raise ValueError(
                f"{folder}: {shard} is missing, which {name} says holds a part of the weights; fetch it too"
            )
        tensors |= read_file(folder / shard).tensors
    if absent := [key for key in where if key not in tensors]:
        raise ValueError(
            f"{folder}: the files lack {len(absent)} tensors of {name} ({shorten(absent)}); fetch them again"
        )
    return WeightsFile(tensors, notes=(f"read from {len(set(where.values()))} files that {name} lists",))


def weight_map(index: Path) -> dict[str, str]:
    """Which tensor lies in which file; a file of the same folder, whatever the index says."""
    where: Any = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(value, str) for value in where.values()):
        raise ValueError(f"{index} has no weight_map (tensor → file); fetch it again")
    outside = [value for value in where.values() if Path(value).name != value or value in ("", ".", "..")]
    if outside:
        raise ValueError(f"{index} names a file outside of its folder ({outside[0]!r:.80}); fetch it again")
    return where
