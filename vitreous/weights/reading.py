"""One weights file, of ours or of others: what it holds, and what it says about that. Nothing in it is executed."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitreous.files import CannotRead, open_file
from vitreous.models.base import ModelConfig
from vitreous.models.edit import Edit
from vitreous.spec import Spec
from vitreous.weights.archives import entries_of, is_npz, read_npz
from vitreous.weights.bounds import check_blocks, check_number
from vitreous.weights.formats import FORMAT, parse_metadata
from vitreous.weights.pickled import read_torch


@dataclass(frozen=True)
class WeightsFile:
    """The tensors of a file or folder, and what else it says: when Vitreous wrote it, everything.

    Tensors may be the file on the disk, and are to be copied by whoever keeps them.
    """

    tensors: dict[str, Tensor]
    config: ModelConfig | None = None
    edits: tuple[Edit, ...] = ()
    spec: Spec | None = None
    foreign: bool = False  # the tensors bear others' names, although a config is known
    notes: tuple[str, ...] = ()  # for the report
    unknown: str = ""  # why a description that is there gives no config


def read_file(path: Path) -> WeightsFile:
    """Read a file of ours or of others: safetensors, a torch checkpoint, or arrays of NumPy."""
    try:
        with open_file(path) as file:
            start = file.read(16)
    except CannotRead as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        raise ValueError(f"there is no weights file {path}; check the path") from None
    if len(start) < 16:
        raise ValueError(f"{path} is empty or cut off ({len(start)} bytes); fetch or save it again")
    if start[8:9] == b"{":
        return read_safetensors(path)
    if start[:2] not in (b"PK", b"\x80\x02", b"\x80\x04"):
        raise ValueError(f"{path} is neither a safetensors file nor a torch checkpoint; convert it to safetensors")
    entries = entries_of(path) if start[:2] == b"PK" else []
    if is_npz(entries):
        return WeightsFile(read_npz(path, entries))
    tensors, notes = read_torch(path, entries)
    return WeightsFile(tensors, notes=notes)


def read_safetensors(path: Path) -> WeightsFile:
    """The tensors are the file itself, mapped into memory: nothing is read of those that fit nowhere."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            check_number(len(names))
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or cut off ({error}); fetch or save it again") from None
    except RuntimeError as error:
        raise ValueError(f"{path} cannot be mapped into memory ({first_line(error)})") from None
    if metadata.get("format") != FORMAT:
        return WeightsFile(tensors)
    try:
        config, edits, spec = parse_metadata(metadata)
        check_blocks(config, len(tensors))
        return WeightsFile(tensors, config, edits, spec)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: its description is not valid ({describe(error)})") from None


def describe(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else first_line(error)


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def shorten(names: list[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f", … and {len(names) - limit} more" if len(names) > limit else "")
