"""Read one Vitreous or third-party weights file: its tensors and metadata. Code in a file is never executed."""

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
from vitreous.weights.archives import is_npz, list_entries, read_npz
from vitreous.weights.bounds import check_blocks, check_tensor_count
from vitreous.weights.formats import FORMAT, parse_metadata
from vitreous.weights.pickled import read_torch


@dataclass(frozen=True)
class WeightsFile:
    """The tensors and metadata of a file or folder; metadata is complete if Vitreous wrote it.

    Tensors may be memory-mapped from the file; copy those that are kept.
    """

    tensors: dict[str, Tensor]
    config: ModelConfig | None = None
    edits: tuple[Edit, ...] = ()
    spec: Spec | None = None
    third_party: bool = False  # tensor names are not those of Vitreous, although a config is known
    notes: tuple[str, ...] = ()  # for the LoadReport
    no_config_reason: str = ""  # why an existing description yields no config


def read_file(path: Path) -> WeightsFile:
    """Read a safetensors file, a torch checkpoint or a NumPy archive."""
    try:
        with open_file(path) as file:
            start = file.read(16)
    except CannotRead as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        raise ValueError(f"there is no weights file {path}; check the path") from None
    if len(start) < 16:
        raise ValueError(f"{path} is empty or truncated ({len(start)} bytes); download or save it again")
    if start[8:9] == b"{":
        return read_safetensors(path)
    if start[:2] not in (b"PK", b"\x80\x02", b"\x80\x04"):
        raise ValueError(f"{path} is neither a safetensors file nor a torch checkpoint; convert it to safetensors")
    entries = list_entries(path) if start[:2] == b"PK" else []
    if is_npz(entries):
        return WeightsFile(read_npz(path, entries))
    tensors, notes = read_torch(path, entries)
    return WeightsFile(tensors, notes=notes)


def read_safetensors(path: Path) -> WeightsFile:
    """Read a safetensors file; its tensors are memory-mapped, so unused ones are never read from disk."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            check_tensor_count(len(names))
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or truncated ({error}); download or save it again") from None
    except RuntimeError as error:
        raise ValueError(f"{path} cannot be mapped into memory ({first_line(error)})") from None
    if metadata.get("format") != FORMAT:
        return WeightsFile(tensors)
    try:
        config, edits, spec = parse_metadata(metadata)
        check_blocks(config, len(tensors))
        return WeightsFile(tensors, config, edits, spec)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: invalid metadata ({describe_error(error)}); download or save it again") from None


def describe_error(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else first_line(error)


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def shorten(names: list[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f", … and {len(names) - limit} more" if len(names) > limit else "")
