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
from vitreous.models import create_model, find_config
from vitreous.models.base import Backbone, Model, ModelConfig
from vitreous.models.edit import rebuild
from vitreous.spec import Spec
from vitreous.weights import files, published
from vitreous.weights.keymaps import Translation, keymaps_of

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POSITIONS = (Learned, LearnedAxes, RelativeBias)


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


def load(source: str | os.PathLike[str], *, model: str | ModelConfig | None = None, **overrides: Any) -> Model:
    """A whole model: from a file that :func:`vitreous.save` wrote, a public weight by name, or a foreign file.

    It computes in float32 whatever the file's precision.

    >>> load("cat.safetensors")
    >>> load("deit_tiny_16.in1k", num_classes=10)      # fetched once, then cached; a new head
    >>> load("deit.pth", model="deit_tiny_16")         # its number of classes is taken from the file
    """
    if is_name(source):
        return load_published(str(source), overrides)
    file = files.read(source)
    if file.config is None:
        return load_foreign(file, str(source), model, overrides)
    if model is not None:
        raise ValueError(f"{source} says itself which model it holds; leave out model={model!r}")
    result = files.on_meta(file.config, str(source), file.edits)
    in_file = not overrides and is_all_stored(result)
    if not in_file:
        result = rebuild(file.config.override(**overrides), file.edits)
    install(result, file, str(source), assign=in_file)
    return result


def is_all_stored(model: Model) -> bool:
    """Whether a file holds every tensor of a model: there are no buffers that it makes anew whenever it is built."""
    return {name for name, _ in model.named_buffers(remove_duplicate=False)} <= model.state_dict().keys()


def load_published(name: str, overrides: dict[str, Any]) -> Model:
    weights = published.find(name)
    path = published.fetch(weights)
    config = find_config(weights.model).override(**weights.config)
    model = create_model(config, **overrides)
    same_head = model.config.num_classes == weights.num_classes
    file = replace(files.read(path), config=config, spec=weights.spec())
    install(model, file, name, head="strict" if same_head else "adapt", foreign=True)
    return model


def load_foreign(
    file: files.WeightsFile, where: str, model: str | ModelConfig | None, overrides: dict[str, Any]
) -> Model:
    """The caller names the model; the number of classes is read off the tensors."""
    if model is None:
        raise ValueError(
            f"{where} does not say which model it belongs to (not written by vt.save, or a config of your own); "
            "name it with model='deit_tiny_16', on the command line with --model deit_tiny_16"
        )
    config = find_config(model)
    tensors = translate(files.on_meta(config, where, file.edits), file.tensors).tensors
    bias = tensors.get("head.bias")
    num_classes = len(bias) if bias is not None and bias.ndim == 1 else 0
    result = rebuild(config.override(**({"num_classes": num_classes} | overrides)), file.edits)
    install(result, file, where)
    if result.config.num_classes == num_classes == 1000:
        result.name_classes(published.imagenet_labels().names)
    return result


def is_name(source: str | os.PathLike[str]) -> bool:
    """``vit_tiny_16.augreg_in21k`` is a name; anything with a folder or a known ending is a path."""
    text = str(source)
    endings = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
    return isinstance(source, str) and not Path(text).exists() and os.sep not in text and not text.endswith(endings)


def load_weights(
    model: Model,
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    head: Literal["adapt", "strict"] = "adapt",
) -> LoadReport:
    """Copy weights into ``model``, under our names or those of timm, transformers, torchvision or the originals.

    ``source`` is a file, a state dict or the name of a public weight. Positions are resampled to the model's grid and
    RGB filters adapted to its channels. When the number of classes differs the head stays fresh (``head="strict"``
    makes that an error). Whatever else does not fit is an error that lists it, and then the model is left as it was.
    """
    if head not in ("adapt", "strict"):
        raise ValueError(f"head must be 'adapt' or 'strict', got {head!r}")
    if not isinstance(model, Backbone) and not holds_whole(model, source):
        report = load_weights(model.backbone, source, head=head)
        model.spec = replace(model.spec, preprocess=model.backbone.spec.preprocess)
        return report
    if isinstance(source, Mapping):
        return install(model, files.WeightsFile(dict(source)), "the given tensors", head=head)
    if is_name(source) and source in published.PUBLISHED:
        known = published.find(str(source))
        report = install(model, files.read(published.fetch(known)), str(source), head=head)
        adopt_spec(model, known.spec(), keep_names=model.config.num_classes == known.num_classes)
        return report
    return install(model, files.read(source), str(source), head=head)


def holds_whole(model: Model, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> bool:
    """Whether weights are those of such a model, and not of its backbone alone."""
    if isinstance(source, Mapping):
        return any(name in source for name in model.state_dict())
    return not is_name(source) and holds_whole(model, files.read(source).tensors)


def install(
    model: Model,
    file: files.WeightsFile,
    where: str,
    *,
    head: str = "adapt",
    assign: bool = False,
    foreign: bool = False,
) -> LoadReport:
    """Everything that :func:`load` and :func:`load_weights` share: name, fit, check, copy, tell."""
    check_edits(model, file, where)
    twin = files.on_meta(file.config, where, file.edits) if file.config is not None else None
    if twin is not None and not foreign:
        check_fit(twin, file.tensors, where)
        translation = Translation("Vitreous", dict(file.tensors))
    else:
        translation = translate(model, file.tensors)
    report = LoadReport(translation.source, unused=translation.unused)
    tensors = dict(translation.tensors)
    wanted = model.state_dict()
    check_dtypes(wanted, tensors, where)
    fit_head(model, tensors, report, head=head)
    fit_channels(model, tensors, report)
    fit_positions(model, tensors, report, twin)
    check_fit(model, tensors, where, translation, may_miss=report.fresh)
    tensors = {name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()}
    model.load_state_dict(tensors, strict=False, assign=assign)
    report.num_loaded = len(tensors)
    if file.spec is not None and file.config is not None:
        adopt_spec(model, file.spec, keep_names=model.config.num_classes == file.config.num_classes)
    return report


def check_edits(model: Model, file: files.WeightsFile, where: str) -> None:
    """Refuse weights of an edited model for one without these edits: it would compute something else."""
    if model.edits[: len(file.edits)] != file.edits:
        given = ", ".join(map(str, file.edits))
        raise ValueError(f"{where} holds a model with the edits {given}; load it with vt.load, or edit this one alike")


def translate(model: Model, tensors: dict[str, Tensor]) -> Translation:
    """The tensors under our names, by whichever key map explains most of them."""
    ours = set(model.state_dict())
    best = Translation("Vitreous", dict(tensors))
    most = len(ours & tensors.keys())
    for keymap in keymaps_of(model):
        translation = keymap.translate(tensors)
        if (num_known := len(ours & translation.tensors.keys())) > most:
            best, most = translation, num_known
    return best


def fit_head(model: Model, tensors: dict[str, Tensor], report: LoadReport, *, head: str) -> None:
    """Heads that are all there with another number of classes, or not there at all, stay as the model has them."""
    num_classes = model.config.num_classes
    keys = [f"{name}.{part}" for name in model.head_names for part in ("weight", "bias")]
    known = model.state_dict() if num_classes else tensors
    keys += [key for key in known if key.split(".")[0] in model.head_names and key not in keys]  # a hidden layer's
    counts = {
        name: len(bias) for name in model.head_names if (bias := tensors.get(f"{name}.bias")) is not None and bias.ndim
    }
    if num_classes == 0:
        report.unused += [key for key in keys if tensors.pop(key, None) is not None]
        return
    if any(key in tensors for key in keys) and not any(count != num_classes for count in counts.values()):
        return
    found = f"{next(iter(counts.values()))} classes" if counts else "no classifier"
    if head == "strict":
        raise ValueError(
            f"the weights have {found}, the model {num_classes} classes; build it with the same number, "
            "or use head='adapt' to start with a new head"
        )
    for key in keys:
        tensors.pop(key, None)
    report.fresh += keys
    report.adapted.append(
        f"{' and '.join(model.head_names)}: {found} in the file, {num_classes} in the model: a new one"
    )


def fit_channels(model: Model, tensors: dict[str, Tensor], report: LoadReport) -> None:
    """Filters for RGB made to fit other pictures: those of the first convolution, and of others that see pixels too."""
    wanted, own = model.config.num_channels, model.state_dict()
    first = next((name for name, tensor in own.items() if tensor.ndim == 4), "")
    if first not in tensors or tensors[first].ndim != 4 or tensors[first].shape[1] in (0, wanted):
        return
    given = tensors[first].shape[1]
    for key, fitting in ((name, tensor.shape) for name, tensor in own.items() if name in tensors):
        filters = tensors[key]
        if filters.ndim == len(fitting) == 4 and filters.shape[1] == given and fitting[1] == wanted:
            tensors[key], how = refit(filters, wanted)
            report.adapted.append(f"{key}: {given} channels in the file, {wanted} in the model: {how}")


def refit(filters: Tensor, wanted: int) -> tuple[Tensor, str]:
    """Summed into one channel, or repeated and rescaled over others, so that responses keep their size."""
    if wanted == 1:
        return filters.sum(1, keepdim=True), "summed over channels"
    given = filters.shape[1]
    repeated = filters.repeat(1, -(-wanted // given), 1, 1)[:, :wanted]
    return repeated * (given / wanted), "repeated and rescaled"


def fit_positions(model: Model, tensors: dict[str, Tensor], report: LoadReport, twin: Model | None) -> None:
    """Tables made for another grid are resampled. ``twin`` knows which; without it the grid is taken to be square."""
    known = dict(twin.named_modules()) if twin is not None else {}
    for path, module in model.named_modules():
        if not isinstance(module, POSITIONS):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            given = tensors.get(f"{path}.{name}")
            if given is None or not alike(given, parameter):
                continue
            maker = known.get(path)
            old_grid = maker.grid if isinstance(maker, POSITIONS) else guess_grid(given, module)
            if old_grid is not None:
                fit_table(module, path, name, given, old_grid, tensors, report)


def fit_table(
    module: Learned | LearnedAxes | RelativeBias,
    path: str,
    name: str,
    given: Tensor,
    old_grid: Grid,
    tensors: dict[str, Tensor],
    report: LoadReport,
) -> None:
    try:
        adapted = module.adapt(name, given, old_grid)
    except ValueError:  # its rows make no sense for that grid: check_fit names both shapes
        return
    tensors[f"{path}.{name}"] = adapted
    if old_grid != module.grid and adapted is not given:
        report.adapted.append(f"{path}.{name}: made for a grid of {show(old_grid)}, resampled to {show(module.grid)}")
    elif adapted is not given:
        report.adapted.append(f"{path}.{name}: no rows for class and distillation token in the file: zeros added")


def alike(given: Tensor, wanted: Tensor) -> bool:
    """Equal in all but the number of rows."""
    return given.ndim == wanted.ndim and given.shape[:-2] == wanted.shape[:-2] and given.shape[-1:] == wanted.shape[-1:]


def guess_grid(table: Tensor, module: Learned | LearnedAxes | RelativeBias) -> Grid | None:
    """The grid of a table whose file does not name it: a square if the count allows one, else the model's own."""
    if isinstance(module, RelativeBias):
        return guess_window(table, module)
    if not isinstance(module, Learned):
        return None
    counts = [table.shape[1] - num_prefix for num_prefix in (module.num_prefix, 0)]
    for count in counts:
        side = math.isqrt(max(0, count))
        if side and side * side == count:
            return side, side
        if count == module.grid[0] * module.grid[1]:
            return module.grid
    return None


def guess_window(table: Tensor, module: RelativeBias) -> Grid | None:
    """The square of s × s cells that a table of (2s − 1)² offsets was made for; None if it fits the module as it is."""
    side = math.isqrt(table.shape[-2])
    if table.shape == module.table.shape or side % 2 == 0 or side * side != table.shape[-2]:
        return None
    return (side + 1) // 2, (side + 1) // 2


def show(grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]}"


def adopt_spec(model: Model, spec: Spec, *, keep_names: bool) -> None:
    """Preprocessing comes with the weights, at this model's size; class names and task only when the head came too."""
    preprocess = replace(spec.preprocess, image_size=model.config.image_size)
    labels = spec.labels if keep_names and spec.labels.names else model.spec.labels
    task = spec.task if keep_names else model.spec.task
    model.spec = Spec(preprocess.with_channels(model.config.num_channels), labels, task)


def check_dtypes(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: str) -> None:
    odd = [
        f"{name} is {tensor.dtype}"
        for name, tensor in tensors.items()
        if tensor.dtype not in FLOATS and name in wanted and tensor.dtype != wanted[name].dtype
    ]
    if odd:
        raise ValueError(f"{where} holds tensors that are no floating-point weights: {files.shorten(odd)}")


def check_fit(
    model: Model,
    tensors: Mapping[str, Tensor],
    where: str,
    translation: Translation | None = None,
    may_miss: list[str] | None = None,
) -> None:
    """Every tensor in its place with its shape, or one error that lists what is not, by the file's own names."""
    origin = translation.origin if translation is not None else {}
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in tensors and name not in (may_miss or [])]
    unknown = [origin.get(name, name) for name in tensors if name not in wanted]
    misfits = [
        f"{origin.get(name, name)} is {tuple(tensor.shape)}, the model's {tuple(wanted[name].shape)}"
        for name, tensor in tensors.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    if translation is not None:
        unknown += translation.unmapped
    problems = [
        f"{len(names)} {what} ({files.shorten(names)})"
        for names, what in ((missing, "missing"), (unknown, "unknown"), (misfits, "of another shape"))
        if names
    ]
    if problems:
        raise ValueError(f"{where} does not fit {type(model).__name__}: {'; '.join(problems)}; is it the right model?")
