"""One safetensors file holds a whole model: weights, config and spec. Foreign files are read, never executed.

Our metadata: ``format`` = "vitreous", ``version``, ``family`` (a key of ``models.FAMILIES``), ``config`` and
``spec`` as JSON. A file is written under a temporary name and then renamed, so it is whole or not there.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from vitreous.models import FAMILIES
from vitreous.models.base import Backbone, Config
from vitreous.spec import Spec

FORMAT, VERSION = "vitreous", 1

#: Where published checkpoints keep their weights, when they are not at the top.
WRAPPERS = ("state_dict", "model_ema", "model", "teacher", "student")


@dataclass(frozen=True)
class WeightsFile:
    """The tensors of a file and, when Vitreous wrote it, what else it says."""

    tensors: dict[str, Tensor]
    config: Config | None = None
    spec: Spec | None = None


def save(model: Backbone, path: str | os.PathLike[str]) -> None:
    """Write weights, config and spec to one safetensors file that :func:`vitreous.load` reads back."""
    model.spec.labels.check(model.config.num_classes)
    family = {kind: name for name, kind in FAMILIES.items()}.get(type(model.config))
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "family": family or type(model.config).__name__,
        "config": json.dumps(model.config.to_json()),
        "spec": json.dumps(model.spec.to_json()),
    }
    write_atomically(Path(path), to_bytes(plain_tensors(model), metadata))


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never half of it, even when power or disk fail midway."""
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~current_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read(path: str | os.PathLike[str]) -> WeightsFile:
    """Read a file of ours or of others: safetensors, or a torch checkpoint that holds nothing but tensors."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no weights file {path}; check the path")
    with open(path, "rb") as file:
        start = file.read(16)
    if len(start) < 16:
        raise ValueError(f"{path} is empty or cut off ({len(start)} bytes); fetch or save it again")
    if start[8:9] == b"{":
        return read_safetensors(path)
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        return WeightsFile(read_torch(path))
    raise ValueError(f"{path} is neither a safetensors file nor a torch checkpoint; convert it to safetensors")


def read_safetensors(path: Path) -> WeightsFile:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or cut off ({error}); fetch or save it again") from None
    if metadata.get("format") != FORMAT:
        return WeightsFile(tensors)
    try:
        return WeightsFile(tensors, *parse_metadata(metadata))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its description is not valid ({describe(error)})") from None


def parse_metadata(metadata: Mapping[str, str]) -> tuple[Config | None, Spec]:
    if int(metadata["version"]) > VERSION:
        raise ValueError(f"format version {metadata['version']}, this Vitreous reads up to {VERSION}; upgrade it")
    spec = Spec.from_json(json.loads(metadata["spec"]))
    if metadata["family"] not in FAMILIES:
        return None, spec
    config = FAMILIES[metadata["family"]]().override(**json.loads(metadata["config"]))
    spec.labels.check(config.num_classes)
    return config, spec


def read_torch(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds here; each means that the file cannot be used
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} cannot be read as plain tensors ({reason}); it is damaged, or holds code, which Vitreous never "
            "runs: save its state_dict as safetensors"
        ) from None
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
            break
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold a state_dict (names → tensors); save one, best as safetensors")
    return dict(content)


def describe(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
