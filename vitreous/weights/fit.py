"""Fit a file's tensors, already under our names, to a model: head, channels and positions; refuse what is left over."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid, Learned, LearnedAxes, RelativeBias, offsets, resample
from vitreous.layers.window import WindowAttention
from vitreous.models.base import Model
from vitreous.weights.keymaps import Translation
from vitreous.weights.reading import shorten

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POSITIONS = (Learned, LearnedAxes, RelativeBias)


@dataclass
class LoadReport:
    """What happened to the weights; ``print(report)`` says it in words."""

    source: str
    num_loaded: int = 0
    notes: list[str] = field(default_factory=list)  # which part of the file was read, and how it was understood
    adapted: list[str] = field(default_factory=list)  # changed to fit, and how
    fresh: list[str] = field(default_factory=list)  # kept at their initial values
    unused: list[str] = field(default_factory=list)  # in the file, without a place here

    def __str__(self) -> str:
        lines = [f"loaded {self.num_loaded} tensors, named as in {self.source}"]
        lines += [f"  {line}" for line in self.notes]
        lines += [f"  adapted: {line}" for line in self.adapted]
        lines += [f"  new, untrained: {name}" for name in self.fresh]
        lines += [f"  not needed: {name}" for name in self.unused]
        return "\n".join(lines)


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
    """Filters for RGB made to fit other images: those of the first convolution, and of others that see pixels too."""
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
            if isinstance(module, RelativeBias) and name == "table" and not made_by(given, maker):
                fit_window(module, f"{path}.{name}", used_window(model, path), tensors, report)
                continue
            old_grid = maker.grid if isinstance(maker, POSITIONS) else guess_grid(given, module)
            if old_grid is not None:
                fit_table(module, path, name, old_grid, tensors, report)


def fit_table(
    module: Learned | LearnedAxes | RelativeBias,
    path: str,
    name: str,
    old_grid: Grid,
    tensors: dict[str, Tensor],
    report: LoadReport,
) -> None:
    key = f"{path}.{name}"
    given = tensors[key]
    try:
        adapted = module.adapt(name, given, old_grid)
    except ValueError:  # its rows make no sense for that grid: check_fit names both shapes
        return
    tensors[key] = adapted
    if old_grid != module.grid and adapted is not given:
        report.adapted.append(f"{key}: made for a grid of {show(old_grid)}, resampled to {show(module.grid)}")
    elif adapted is not given:
        report.adapted.append(f"{key}: no rows for class and distillation token in the file: zeros added")


def fit_window(module: RelativeBias, key: str, used: Grid, tensors: dict[str, Tensor], report: LoadReport) -> None:
    """Others keep a table as large as the map where that is smaller than a window, we one for whole windows.

    A table of ``used`` cells is put into the middle of a whole one, where a map of that size finds it; one made for
    another map is resampled to that first.
    """
    given = tensors[key]
    old_grid = None if given.shape == module.table.shape else guess_window(given, used)
    if old_grid is None:
        return
    table = resample(given, offsets(old_grid), offsets(used))
    tensors[key] = in_the_middle(table, used, module.grid)
    resampled = f", resampled to {show(used)}" if old_grid != used else ""
    placed = f", put into the middle of {show(module.grid)}" if used != module.grid else ""
    report.adapted.append(f"{key}: made for a grid of {show(old_grid)}{resampled}{placed}")


def in_the_middle(table: Tensor, used: Grid, whole: Grid) -> Tensor:
    """A table of offsets with its edges repeated up to the offsets of a larger grid."""
    rows, columns = (large - small for large, small in zip(whole, used, strict=True))
    offset_map = rearrange(table, "b (y x) h -> b h y x", y=offsets(used)[0])
    padded = F.pad(offset_map.float(), (columns, columns, rows, rows), mode="replicate")
    return rearrange(padded, "b h y x -> b (y x) h").to(table.dtype)


def used_window(model: Model, path: str) -> Grid:
    """The cells that a relative bias is asked about at the model's own image size."""
    module, attention = model.get_submodule(path), model.get_submodule(path.rpartition(".")[0])
    if not isinstance(attention, WindowAttention):
        assert isinstance(module, RelativeBias)
        return module.grid
    stage = re.search(r"stages\.(\d+)\.", path)
    return attention.partition(grid_of(model.config.image_size, model.strides[int(stage[1]) if stage else -1])).window


def made_by(table: Tensor, maker: nn.Module | None) -> bool:
    return isinstance(maker, RelativeBias) and table.shape == maker.table.shape


def alike(given: Tensor, wanted: Tensor) -> bool:
    """Equal in all but the number of rows."""
    return given.ndim == wanted.ndim and given.shape[:-2] == wanted.shape[:-2] and given.shape[-1:] == wanted.shape[-1:]


def guess_grid(table: Tensor, module: Learned | LearnedAxes | RelativeBias) -> Grid | None:
    """The grid of a table whose file does not name it: a square if the count allows one, else the model's own."""
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


def guess_window(table: Tensor, used: Grid) -> Grid | None:
    """The cells whose offsets a table has a row for: those in use, or a square."""
    rows, columns = offsets(used)
    if table.shape[-2] == rows * columns:
        return used
    side = math.isqrt(table.shape[-2])
    return ((side + 1) // 2, (side + 1) // 2) if side % 2 and side * side == table.shape[-2] else None


def show(grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]}"


def check_dtypes(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: str) -> None:
    odd = [
        f"{name} is {tensor.dtype}"
        for name, tensor in tensors.items()
        if tensor.dtype not in FLOATS and name in wanted and tensor.dtype != wanted[name].dtype
    ]
    if odd:
        raise ValueError(f"{where} holds tensors that are no floating-point weights: {shorten(odd)}")


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
        f"{len(names)} {what} ({shorten(names)})"
        for names, what in ((missing, "missing"), (unknown, "unknown"), (misfits, "of another shape"))
        if names
    ]
    if problems:
        raise ValueError(f"{where} does not fit {type(model).__name__}: {'; '.join(problems)}; is it the right model?")
