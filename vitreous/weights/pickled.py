"""Torch checkpoints, read by torch's safe loader: tensors as they are, harmless company as blanks, nothing else at all.

Training scripts keep arguments, metrics and an optimizer's memory beside the weights. What is harmless of that has a
row in ``BLANKS``, and even there no foreign type is built: a :class:`Blank` takes its place. Any other name that a file
asks for is refused.
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
from vitreous.weights.bounds import check_number

#: Where checkpoints keep their weights, when they are not at the top; averaged ones first, as timm has it.
PARTS = ("state_dict_ema", "model_ema", "state_dict", "model", "teacher", "student")


class Blank:
    """What stands for an object that nobody needs: it takes anything and does nothing."""

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


HARMLESS = {
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
#: Dictionaries of Lightning, which keeps a model's settings in them.
DICTIONARIES = (
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "lightning.fabric.utilities.data.AttributeDict",
)
BLANKS: list[Any] = [
    Blank,
    *((Blank, f"{module}.{name}") for module, names in HARMLESS.items() for name in names.split()),
    *((OrderedDict, name) for name in DICTIONARIES),
]
LOADING = threading.Lock()  # torch's table of what is harmless belongs to the whole process


def read_torch(path: Path, entries: list[zipfile.ZipInfo]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors of a checkpoint, and a note that says which part of it they are; ``entries`` if it is an archive."""
    check_archive(path, entries)
    content, part = state_in(load_safely(path))
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold a state_dict (names → tensors); save one, best as safetensors")
    tensors = {name: value.detach() for name, value in content.items() if isinstance(value, Tensor)}
    check_tensors(tensors, path)
    return tensors, (f"read from its {part!r}",) if part else ()


def state_in(content: Any) -> tuple[Any, str]:
    """The weights in a checkpoint, and the names of what they lay in."""
    for part in PARTS:
        if isinstance(content, Mapping) and isinstance(content.get(part), Mapping) and content[part]:
            inner, below = state_in(content[part])
            return inner, f"{part}.{below}" if below else part
    return content, ""


def load_safely(path: Path) -> Any:
    with LOADING, warnings.catch_warnings(), torch.serialization.safe_globals(BLANKS):
        warnings.simplefilter("ignore")  # of protocols that torch.save does not write: refused below
        try:
            with open_file(path) as file:
                return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds here; each means that the file cannot be used
            reason = str(error)
    if asked := re.search(r"GLOBAL (\S+)", reason):
        raise ValueError(
            f"{path} asks for {asked[1]} and so holds code, which Vitreous never runs; if you trust it, take out the "
            "weights with torch.load(…, weights_only=False) and save them as safetensors"
        )
    raise ValueError(
        f"{path} cannot be read as plain tensors: it is damaged, or holds code, which Vitreous never runs; "
        "save its state_dict as safetensors"
    )


def check_archive(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive that would become larger by unpacking: torch never compresses."""
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError(f"{path} is compressed, as torch.save never does; save its state_dict as safetensors")


def check_tensors(tensors: Mapping[Any, Tensor], path: Path) -> None:
    """Refuse what is no plain tensor under a plain name, or claims more values than the file has."""
    size = path.stat().st_size
    check_number(len(tensors))
    for name, tensor in tensors.items():
        kind = odd_kind(tensor)
        if not isinstance(name, str):
            raise ValueError(f"{path}: the names of its tensors must be text, got {name!r:.80}")
        if kind:
            raise ValueError(f"{path}: {name:.80} is {kind}, no plain tensor; save a plain state_dict")
        if math.prod(tensor.shape) * tensor.element_size() > size:
            raise ValueError(
                f"{path}: {name:.80} claims the shape {tuple(tensor.shape)}, more than the whole file holds"
            )


def odd_kind(tensor: Tensor) -> str:
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_meta:
        return "without values (on the meta device)"
    if tensor.layout != torch.strided or tensor.is_nested:
        return f"{str(tensor.layout).removeprefix('torch.')}"
    return "" if type(tensor) in (Tensor, torch.nn.Parameter) else f"a {type(tensor).__name__}"
