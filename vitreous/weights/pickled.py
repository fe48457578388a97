"""Read torch checkpoints with torch's safe loader: tensors, and stubs for a list of harmless types.

Training scripts store arguments, metrics and optimizer state along with the weights. Harmless types among these are
listed in ``SAFE_GLOBALS`` and replaced by a :class:`Stub` or an ``OrderedDict``, so that no third-party type is
instantiated. A reference to any other type is refused.
"""

from __future__ import annotations

import math
import re
import threading
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from vitreous.files import open_file
from vitreous.weights.bounds import check_tensor_count

#: Keys of the weights in a checkpoint that is not itself a state dict; averaged weights first, as in timm.
STATE_DICT_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model", "teacher", "student")


class Stub:
    """Placeholder for an unneeded object; it accepts any arguments and does nothing."""

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


HARMLESS_TYPES = {
    "argparse": "Namespace",
    "types": "SimpleNamespace",
    "numpy": "dtype ndarray float16 float32 float64 int8 int16 int32 int64 uint8 bool bool_",
    "numpy.dtypes": "BoolDType Float16DType Float32DType Float64DType Int8DType Int16DType Int32DType Int64DType",
    "numpy.core.multiarray": "scalar _reconstruct",
    "numpy._core.multiarray": "scalar _reconstruct",
    "numpy._core.numeric": "_frombuffer",
    "pathlib": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
    "pathlib._local": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
    "datetime": "date datetime time timedelta timezone",
    "builtins": "bool bytes dict float frozenset int list range slice str tuple",
    "torch.torch_version": "TorchVersion",
}
#: Lightning's dictionary types for hyperparameters.
LIGHTNING_DICTS = (
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "lightning.fabric.utilities.data.AttributeDict",
)
SAFE_GLOBALS: list[Any] = [
    Stub,
    *((Stub, f"{module}.{name}") for module, names in HARMLESS_TYPES.items() for name in names.split()),
    *((OrderedDict, name) for name in LIGHTNING_DICTS),
]
LOAD_LOCK = threading.Lock()  # torch's list of safe globals is shared by the whole process


def read_torch(path: Path, entries: list[zipfile.ZipInfo]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Read the tensors of a checkpoint and a note on their key in it; ``entries`` are those of a zip archive."""
    check_archive(path, entries)
    content, key = find_state_dict(load_safely(path))
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not contain a state_dict (name → tensor); save one, preferably as safetensors")
    tensors = {name: value.detach() for name, value in content.items() if isinstance(value, Tensor)}
    check_tensors(tensors, path)
    return tensors, (f"read from {key!r}",) if key else ()


def find_state_dict(content: Any) -> tuple[Any, str]:
    """Return the state dict in a checkpoint and the dotted path of its keys."""
    for key in STATE_DICT_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping) and content[key]:
            state, inner_key = find_state_dict(content[key])
            return state, f"{key}.{inner_key}" if inner_key else key
    return content, ""


def load_safely(path: Path) -> Any:
    with LOAD_LOCK, warnings.catch_warnings(), torch.serialization.safe_globals(SAFE_GLOBALS):
        warnings.simplefilter("ignore")  # about pickle protocols unknown to torch.save, refused below
        try:
            with open_file(path) as file:
                return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # errors of many types; each means that the file is unusable
            reason = str(error)
    if reference := re.search(r"GLOBAL (\S+)", reason):
        raise ValueError(
            f"{path} refers to {reference[1]}, and Vitreous never executes code from a file; if you trust it, extract "
            "the weights with torch.load(…, weights_only=False) and save them as safetensors"
        )
    raise ValueError(
        f"{path} cannot be read as plain tensors: it is damaged, or contains code, and Vitreous never executes code "
        "from a file; save its state_dict as safetensors"
    )


def check_archive(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse a compressed archive, which could exhaust memory; torch never compresses."""
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError(f"{path} is compressed, but torch.save never compresses; save its state_dict as safetensors")


def check_tensors(tensors: Mapping[Any, Tensor], path: Path) -> None:
    """Require plain tensors with string names, and no more values than the file can hold."""
    size = path.stat().st_size
    check_tensor_count(len(tensors))
    for name, tensor in tensors.items():
        kind = unsupported_kind(tensor)
        if not isinstance(name, str):
            raise ValueError(f"{path}: tensor names must be strings, got {name!r:.80}; save a plain state_dict")
        if kind:
            raise ValueError(f"{path}: {name:.80} is {kind}, not a plain tensor; save a plain state_dict")
        if math.prod(tensor.shape) * tensor.element_size() > size:
            raise ValueError(
                f"{path}: {name:.80} claims the shape {tuple(tensor.shape)}, larger than the file; save it again"
            )


def unsupported_kind(tensor: Tensor) -> str:
    """Describe why a tensor is not a plain one; empty if it is."""
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_meta:
        return "without values (on the meta device)"
    if tensor.layout != torch.strided or tensor.is_nested:
        return f"{str(tensor.layout).removeprefix('torch.')}"
    return "" if type(tensor) in (Tensor, torch.nn.Parameter) else f"a {type(tensor).__name__}"
