"""One safetensors file holds a whole model: weights, config, edits and spec. Foreign files are read, never executed.

Our metadata (``weights/formats.py``): ``format`` = "vitreous", ``version``, ``family`` (a key of ``models.FAMILIES``),
``config``, ``edits`` and ``spec`` as JSON. A model that config and edits do not describe is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from vitreous.files import write_atomically
from vitreous.models.base import Model, ModelConfig
from vitreous.models.edit import Edit, rebuild
from vitreous.spec import Spec
from vitreous.weights.formats import FORMAT, metadata_of, parse_metadata
from vitreous.weights.structure import check_described, plain_name

#: Where published checkpoints keep their weights, when they are not at the top.
WRAPPERS = ("state_dict", "model_ema", "model", "teacher", "student")


@dataclass(frozen=True)
class WeightsFile:
    """The tensors of a file and, when Vitreous wrote it, what else it says."""

    tensors: dict[str, Tensor]
    config: ModelConfig | None = None
    edits: tuple[Edit, ...] = ()
    spec: Spec | None = None


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write weights, config, edits and spec to one safetensors file that :func:`vitreous.load` reads back.

    A model that was changed otherwise than by ``model.edit`` or ``reset_head`` is refused.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if not isinstance(model, Model):
        raise ValueError(f"save needs a Vitreous model, got {type(model).__name__}")
    model.spec.labels.check(model.config.num_classes)
    check_described(model, on_meta(model.config, "this model", model.edits))
    tensors = {plain_name(name): tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_atomically(Path(path), to_bytes(tensors, metadata_of(model)))


def on_meta(config: ModelConfig, where: str, edits: Iterable[Edit] = ()) -> Model:
    """The model's shape without its memory: what a file claims is checked before anything is allocated for it."""
    try:
        with torch.device("meta"):
            return rebuild(config, edits)
    except Exception as error:  # sizes that overflow raise many kinds of error
        raise ValueError(f"{where}: no model can be built from its config and edits ({first_line(error)})") from None


def read(path: str | os.PathLike[str]) -> WeightsFile:
    """Read a file of ours or of others: safetensors, or a torch checkpoint that holds nothing but tensors."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a weights file")
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
            # cloned: a mapped file that changes on disk would change the model, or kill the process
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or cut off ({error}); fetch or save it again") from None
    if metadata.get("format") != FORMAT:
        return WeightsFile(tensors)
    try:
        return WeightsFile(tensors, *parse_metadata(metadata))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: its description is not valid ({describe(error)})") from None


def read_torch(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds here; each means that the file cannot be used
        raise ValueError(
            f"{path} cannot be read as plain tensors: it is damaged, or holds code, which Vitreous never runs; "
            "save its state_dict as safetensors"
        ) from None
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
            break
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold a state_dict (names → tensors); save one, best as safetensors")
    return dict(content)


def describe(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else first_line(error)


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def shorten(names: list[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f", … and {len(names) - limit} more" if len(names) > limit else "")
