"""Read model folders: those of runs, of transformers and timm, and weights sharded into several files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.files import CannotRead
from vitreous.weights.bounds import check_blocks
from vitreous.weights.described import ModelDescription, read_description, read_json
from vitreous.weights.reading import WeightsFile, read_file, shorten

#: In order of preference; an index lists the shards.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def read_folder(folder: Path) -> WeightsFile:
    """Read the weights in a folder; a ``config.json`` may describe the model if Vitreous did not write the weights."""
    name = next((name for name in WEIGHT_FILES if os.path.lexists(folder / name)), None)
    if name is None:
        raise ValueError(f"{folder} is a folder without {' or '.join(WEIGHT_FILES[::2])}; {list_contents(folder)}")
    file = read_shards(folder, name) if name.endswith(".json") else read_file(folder / name)
    if file.spec is not None:
        return file
    found = read_description(folder) if os.path.lexists(folder / "config.json") else ModelDescription()
    try:
        check_blocks(found.config, len(file.tensors))
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    return replace(
        file,
        config=found.config,
        spec=found.spec,
        no_config_reason=found.no_config_reason,
        notes=file.notes + found.notes,
        third_party=True,
    )


def list_contents(folder: Path) -> str:
    try:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(folder))
    except OSError as error:
        raise CannotRead(error.errno, error.strerror, str(folder)) from None
    return f"it contains {shorten(names)}; pass the path of the weights file" if names else "it is empty"


def read_shards(folder: Path, name: str) -> WeightsFile:
    """Read sharded weights according to their index."""
    where = weight_map(folder / name)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(where.values())):
        if not os.path.lexists(folder / shard):
            raise ValueError(f"{folder}: the shard {shard}, listed in {name}, is missing; download it too")
        tensors |= read_file(folder / shard).tensors
    if absent := [key for key in where if key not in tensors]:
        raise ValueError(
            f"{folder}: the shards lack {len(absent)} tensors listed in {name} ({shorten(absent)}); download them again"
        )
    return WeightsFile(tensors, notes=(f"read from the {len(set(where.values()))} files listed in {name}",))


def weight_map(index: Path) -> dict[str, str]:
    """Read the file of each tensor from an index; refuse files outside of its folder."""
    where: Any = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(value, str) for value in where.values()):
        raise ValueError(f"{index} has no valid weight_map (tensor → file); download it again")
    outside = [value for value in where.values() if Path(value).name != value or value in ("", ".", "..")]
    if outside:
        raise ValueError(f"{index} refers to a file outside its folder ({outside[0]!r:.80}); download it again")
    return where
