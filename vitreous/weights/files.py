"""One safetensors file holds a whole model: weights, config, edits and spec. Others' files and folders are read too.

Our metadata (``weights/formats.py``): ``format`` = "vitreous", ``version``, ``family`` (a key of ``models.FAMILIES``),
``config``, ``edits`` and ``spec`` as JSON. A model that config and edits do not describe is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes

from vitreous.files import write_atomically
from vitreous.models.base import Model, ModelConfig
from vitreous.models.edit import Edit, rebuild
from vitreous.weights.bounds import check_bounds
from vitreous.weights.folders import read_folder
from vitreous.weights.formats import metadata_of
from vitreous.weights.hub import fetch_repository, repository_of
from vitreous.weights.reading import WeightsFile, first_line, read_file
from vitreous.weights.structure import check_described, plain_name


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
        check_bounds(config)
        with torch.device("meta"):
            return rebuild(config, edits)
    except Exception as error:  # sizes that overflow raise many kinds of error
        raise ValueError(f"{where}: no model can be built from its config and edits ({first_line(error)})") from None


def read(source: str | os.PathLike[str]) -> WeightsFile:
    """Read weights, ours or others', from a file or from the folder of a run or a model."""
    repository = repository_of(source)
    path = Path(source) if repository is None else fetch_repository(repository)
    return read_folder(path) if path.is_dir() else read_file(path)
