"""Zip archives of others, looked into before anything is unpacked; and NumPy's, in which JAX keeps its weights."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.files import open_file
from vitreous.weights.bounds import check_number

BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)
#: How much larger than the file its arrays may be: weights hardly shrink by compression, but a small file may.
MOST_GROWTH, SMALL = 4, 1 << 26


def entries_of(path: Path) -> list[zipfile.ZipInfo]:
    """What a zip archive holds, by its table of contents."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except BROKEN as error:
        raise ValueError(f"{path} is damaged or cut off ({error}); fetch or save it again") from None


def is_npz(entries: list[zipfile.ZipInfo]) -> bool:
    return bool(entries) and all(entry.filename.endswith(".npy") for entry in entries)


def read_npz(path: Path, entries: list[zipfile.ZipInfo]) -> dict[str, Tensor]:
    """Every array as a tensor, under the name it has there; no pickle is read."""
    check_number(len(entries))
    total, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > MOST_GROWTH * size + SMALL:
        raise ValueError(f"{path} would unpack {size:,} bytes to {total:,}, which no weights do; fetch it again")
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return {entry.filename.removesuffix(".npy"): read_array(archive, entry) for entry in entries}
    except BROKEN as error:
        raise ValueError(f"{path} is damaged or no array of numbers ({error}); fetch or save it again") from None


def read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Tensor:
    """Refuse what claims more values than it brings, before memory is taken for them."""
    with archive.open(entry) as stream:
        shape, _, dtype = read_header(stream)
        held = entry.file_size - stream.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize > held:
        raise ValueError(f"{entry.filename} claims {shape} values of {dtype} in {held:,} bytes")
    with archive.open(entry) as stream:
        return as_tensor(np.lib.format.read_array(stream, allow_pickle=False))


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """NumPy has no bfloat16: JAX's files have two bytes without a meaning in its place."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"values of {array.dtype} are no weights")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
