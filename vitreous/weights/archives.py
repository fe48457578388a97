"""Inspect third-party zip archives before unpacking, and read NumPy's .npz, the weights format of JAX models."""

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
from vitreous.weights.bounds import check_tensor_count

ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)
#: Limit of the unpacked size: MAX_GROWTH × file size + ALLOWANCE. Weights hardly compress, but a small file may.
MAX_GROWTH, ALLOWANCE = 4, 1 << 26


def list_entries(path: Path) -> list[zipfile.ZipInfo]:
    """List the entries of a zip archive from its table of contents."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except ZIP_ERRORS as error:
        raise ValueError(f"{path} is damaged or truncated ({error}); download or save it again") from None


def is_npz(entries: list[zipfile.ZipInfo]) -> bool:
    return bool(entries) and all(entry.filename.endswith(".npy") for entry in entries)


def read_npz(path: Path, entries: list[zipfile.ZipInfo]) -> dict[str, Tensor]:
    """Read every array as a tensor under its name in the file; pickled objects are refused."""
    check_tensor_count(len(entries))
    total, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > MAX_GROWTH * size + ALLOWANCE:
        raise ValueError(f"{path} would unpack {size:,} to {total:,} bytes, too many for weights; download it again")
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return {entry.filename.removesuffix(".npy"): read_array(archive, entry) for entry in entries}
    except ZIP_ERRORS as error:
        raise ValueError(f"{path} is damaged or not a numeric array ({error}); download or save it again") from None


def read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Tensor:
    """Read an array; refuse one that claims more values than the file holds before memory is allocated for it."""
    with archive.open(entry) as stream:
        shape, _, dtype = read_header(stream)
        available = entry.file_size - stream.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize > available:
        raise ValueError(f"{entry.filename} claims {shape} values of {dtype} but has {available:,} bytes")
    with archive.open(entry) as stream:
        return as_tensor(np.lib.format.read_array(stream, allow_pickle=False))


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Convert an array to a tensor; JAX writes bfloat16, unknown to NumPy, as two untyped bytes."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"weights must be numbers, got values of type {array.dtype}")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
