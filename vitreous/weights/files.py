"""Save a complete model to one safetensors file, and read Vitreous and third-party files and folders.

Metadata of a Vitreous file (``weights/formats.py``): ``format`` = "vitreous", ``version``, ``family`` (a key of
``models.FAMILIES``), ``config``, ``edits`` and ``spec`` as JSON. A model that is not fully described by its config and
edits is refused.
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
from vitreous.weights.structure import check_reproducible, strip_wrappers


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write weights, config, edits and spec to one safetensors file that :func:`vitreous.load` reads back.

    A model changed in any way other than ``model.edit`` or ``reset_head`` is refused.
    """
    model = getattr(model, "_orig_mod", model)  # unwrap torch.compile
    if not isinstance(model, Model):
        raise ValueError(f"save expects a Vitreous model, got {type(model).__name__}")
    model.spec.labels.check(model.config.num_classes)
    check_reproducible(model, build_on_meta(model.config, "this model", model.edits))
    tensors = {strip_wrappers(name): tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_atomically(Path(path), to_bytes(tensors, metadata_of(model)))


def build_on_meta(config: ModelConfig, where: str, edits: Iterable[Edit] = ()) -> Model:
    """Build a model on the meta device, so that a file's claims are checked before memory is allocated."""
    try:
        check_bounds(config)
        with torch.device("meta"):
            return rebuild(config, edits)
    except Exception as error:  # overflowing sizes raise errors of many types
        raise ValueError(f"{where}: cannot build a model from its config and edits ({first_line(error)})") from None


def read(source: str | os.PathLike[str]) -> WeightsFile:
    """Read Vitreous or third-party weights from a file, a run folder, a model folder or a Hugging Face repository."""
    repository = repository_of(source)
    path = Path(source) if repository is None else fetch_repository(repository)
    return read_folder(path) if path.is_dir() else read_file(path)
