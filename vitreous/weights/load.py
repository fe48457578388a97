"""Weights into a model, whoever named them: find the key map, fit what can be fitted, refuse the rest."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.layers.position import Grid, Learned, LearnedAxes, RelativeBias
from vitreous.models import create_model
from vitreous.models.base import Backbone, Config
from vitreous.spec import Spec
from vitreous.weights import files, published
from vitreous.weights.keymaps import KeyMap, Translation
from vitreous.weights.keymaps import vit as vit_keys

#: Key maps by the module that defines the model.
KEYMAPS: dict[str, tuple[KeyMap, ...]] = {"vitreous.models.vit": vit_keys.KEYMAPS}


@dataclass
class LoadReport:
    """What happened to the weights; ``print(report)`` says it in words."""

    source: str
    num_loaded: int = 0
    adapted: list[str] = field(default_factory=list)  # changed to fit, and how
    fresh: list[str] = field(default_factory=list)  # kept at their initial values
    unused: list[str] = field(default_factory=list)  # in the file, without a place here

    def __str__(self) -> str:
        lines = [f"loaded {self.num_loaded} tensors, named as in {self.source}"]
        lines += [f"  adapted: {line}" for line in self.adapted]
        lines += [f"  new, untrained: {name}" for name in self.fresh]
        lines += [f"  not needed: {name}" for name in self.unused]
        return "\n".join(lines)


def load(source: str | os.PathLike[str], **overrides: Any) -> Backbone:
    """A whole model: from a file that :func:`vitreous.save` wrote, or a public weight by name.

    >>> load("cat.safetensors")
    >>> load("deit_tiny_16.in1k", num_classes=10)      # fetched once, then cached; a new head
    """
    if is_name(source):
        return load_published(str(source), overrides)
    file = files.read(source)
    if file.config is None:
        raise ValueError(
            f"{source} does not say which model it belongs to (not written by vt.save, or a config of your own); "
            "build the model with vt.create_model and use vt.load_weights(model, path)"
        )
    check_fit(on_meta(file.config), file.tensors, str(source))
    model = file.config.override(**overrides).build() if overrides else on_meta(file.config)
    install(model, file, str(source), assign=not overrides)
    return model


def load_published(name: str, overrides: dict[str, Any]) -> Backbone:
    weights = published.find(name)
    model = create_model(weights.model, **(weights.config | overrides))
    load_weights(model, published.fetch(weights))
    keep_names = model.config.num_classes == weights.num_classes
    adopt_spec(model, weights.spec(), keep_names=keep_names)
    return model


def on_meta(config: Config) -> Backbone:
    """The model's shape without its memory: what a file claims is checked before anything is allocated for it."""
    with torch.device("meta"):
        return config.build()


def is_name(source: str | os.PathLike[str]) -> bool:
    """``vit_tiny_16.augreg_in21k`` is a name; anything with a folder or a known ending is a path."""
    text = str(source)
    endings = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
    return isinstance(source, str) and not Path(text).exists() and os.sep not in text and not text.endswith(endings)


def load_weights(
    model: Backbone,
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    head: Literal["adapt", "strict"] = "adapt",
) -> LoadReport:
    """Copy weights into ``model``, under our names or those of timm, transformers, torchvision or the originals.

    Positions are resampled to the model's grid and RGB filters adapted to its channels. When the number of classes
    differs the head stays fresh (``head="strict"`` makes that an error). Whatever else does not fit is an error that
    lists it, and then the model is left as it was.
    """
    where = "the given tensors" if isinstance(source, Mapping) else str(source)
    file = files.WeightsFile(dict(source)) if isinstance(source, Mapping) else files.read(source)
    return install(model, file, where, head=head)


def install(
    model: Backbone, file: files.WeightsFile, where: str, *, head: str = "adapt", assign: bool = False
) -> LoadReport:
    translation = translate(model, file.tensors)
    report = LoadReport(translation.source, unused=translation.unused)
    tensors = dict(translation.tensors)
    fit_head(model, tensors, report, head=head)
    fit_channels(model, tensors, report)
    fit_positions(model, tensors, report, file.config)
    check_fit(model, tensors, where, unmapped=translation.unmapped, may_miss=report.fresh)
    model.load_state_dict(tensors, strict=False, assign=assign)
    report.num_loaded = len(tensors)
    if file.spec is not None and file.config is not None:
        adopt_spec(model, file.spec, keep_names=model.config.num_classes == file.config.num_classes)
    return report


def translate(model: Backbone, tensors: dict[str, Tensor]) -> Translation:
    """The tensors under our names, by whichever key map leaves the fewest without a place."""
    ours = set(model.state_dict())
    best = Translation("Vitreous", dict(tensors), [], [])
    most = len(ours & tensors.keys())
    for keymap in KEYMAPS.get(type(model).__module__, ()):
        translation = keymap.translate(tensors)
        if (num_known := len(ours & translation.tensors.keys())) > most:
            best, most = translation, num_known
    return best


def fit_head(model: Backbone, tensors: dict[str, Tensor], report: LoadReport, *, head: str) -> None:
    num_classes = model.config.num_classes
    wanted = model.state_dict()
    for name in model.head_names:
        given = tensors.get(f"{name}.bias")
        if given is not None and given.shape[0] == num_classes:
            continue
        if head == "strict" and num_classes:
            found = "no classifier" if given is None else f"{given.shape[0]} classes"
            raise ValueError(
                f"the weights have {found}, the model {num_classes} classes; build it with the same number, "
                "or use head='adapt' to start with a new head"
            )
        for key in (f"{name}.weight", f"{name}.bias"):
            if tensors.pop(key, None) is not None and num_classes == 0:
                report.unused.append(key)
            if key in wanted:
                report.fresh.append(key)
        if given is not None and num_classes:
            report.adapted.append(
                f"{name}: {given.shape[0]} classes in the file, {num_classes} in the model: a new one"
            )


def fit_channels(model: Backbone, tensors: dict[str, Tensor], report: LoadReport) -> None:
    """Filters for RGB summed into one channel, or repeated and rescaled over others, so that responses keep size."""
    key, wanted = "stem.proj.weight", model.config.num_channels
    weight = tensors.get(key)
    if weight is None or weight.ndim != 4 or weight.shape[1] == wanted:
        return
    given = weight.shape[1]
    if wanted == 1:
        tensors[key], how = weight.sum(1, keepdim=True), "summed over channels"
    else:
        repeats = -(-wanted // given)
        tensors[key] = weight.repeat(1, repeats, 1, 1)[:, :wanted] * (given / wanted)
        how = "repeated and rescaled"
    report.adapted.append(f"{key}: {given} channels in the file, {wanted} in the model: {how}")


def fit_positions(model: Backbone, tensors: dict[str, Tensor], report: LoadReport, written_for: Config | None) -> None:
    """Tables made for another grid are resampled. Our files say which grid; elsewhere it is taken to be square."""
    twin = dict(on_meta(written_for).named_modules()) if written_for is not None else {}
    for path, module in model.named_modules():
        if not isinstance(module, Learned | LearnedAxes | RelativeBias):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            key = f"{path}.{name}"
            if (given := tensors.get(key)) is None:
                continue
            old_grid = twin[path].grid if path in twin else guess_grid(given, module)
            if old_grid is None or (old_grid == module.grid and given.shape == parameter.shape):
                continue
            try:
                tensors[key] = module.adapt(name, given, old_grid)
            except ValueError:  # its rows make no sense for that grid: check_fit names both shapes
                continue
            report.adapted.append(f"{key}: made for a grid of {show(old_grid)}, resampled to {show(module.grid)}")


def guess_grid(table: Tensor, module: Learned | LearnedAxes | RelativeBias) -> Grid | None:
    """The grid of a table whose file does not name it: the model's own if the count fits, else a square."""
    if not isinstance(module, Learned) or table.ndim != 3:
        return None
    for num_prefix in (module.num_prefix, 0):
        num_cells = table.shape[1] - num_prefix
        side = math.isqrt(max(0, num_cells))
        if num_cells == module.grid[0] * module.grid[1]:
            return module.grid
        if side and side * side == num_cells:
            return side, side
    return None


def show(grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]}"


def adopt_spec(model: Backbone, spec: Spec, *, keep_names: bool) -> None:
    """Preprocessing comes with the weights, at this model's size; names of classes only when the head came too."""
    preprocess = replace(spec.preprocess, image_size=model.config.image_size)
    labels = spec.labels if keep_names else model.spec.labels
    model.spec = Spec(preprocess.with_channels(model.config.num_channels), labels)


def check_fit(
    model: Backbone,
    tensors: Mapping[str, Tensor],
    where: str,
    *,
    unmapped: list[str] | None = None,
    may_miss: list[str] | None = None,
) -> None:
    """Every tensor in its place with its shape, or one error that lists what is not."""
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in tensors and name not in (may_miss or [])]
    unknown = list(unmapped or []) + [name for name in tensors if name not in wanted]
    misfits = [
        f"{name} is {tuple(tensor.shape)} in the file, {tuple(wanted[name].shape)} in the model"
        for name, tensor in tensors.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    problems = [
        f"{len(names)} {what} ({shorten(names)})"
        for names, what in ((missing, "missing"), (unknown, "unknown"), (misfits, "of another shape"))
        if names
    ]
    if problems:
        raise ValueError(f"{where} does not fit {type(model).__name__}: {'; '.join(problems)}; is it the right model?")


def shorten(names: list[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f", … and {len(names) - limit} more" if len(names) > limit else "")
