"""Fit tensors with Vitreous names to a model: adapt head, channels and positions, and refuse remaining mismatches."""

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
    """Result of loading weights; ``print(report)`` shows a readable summary."""

    source: str
    num_loaded: int = 0
    notes: list[str] = field(default_factory=list)  # the part of the file that was read, and how it was interpreted
    adapted: list[str] = field(default_factory=list)  # changed to fit the model, and how
    fresh: list[str] = field(default_factory=list)  # not loaded: initial values are kept
    unused: list[str] = field(default_factory=list)  # in the file, but not in the model

    def __str__(self) -> str:
        lines = [f"loaded {self.num_loaded} tensors, named as in {self.source}"]
        lines += [f"  {line}" for line in self.notes]
        lines += [f"  adapted: {line}" for line in self.adapted]
        lines += [f"  newly initialized: {name}" for name in self.fresh]
        lines += [f"  unused: {name}" for name in self.unused]
        return "\n".join(lines)


def fit_head(model: Model, tensors: dict[str, Tensor], report: LoadReport, *, head: str) -> None:
    """Keep the model's own heads if the file has none or their number of classes differs."""
    num_classes = model.config.num_classes
    keys = [f"{name}.{part}" for name in model.head_names for part in ("weight", "bias")]
    source = model.state_dict() if num_classes else tensors
    keys += [key for key in source if key.split(".")[0] in model.head_names and key not in keys]  # of hidden layers
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
            f"the weights have {found}, the model has {num_classes} classes; build it with the same number, "
            "or use head='adapt' to initialize a new head"
        )
    for key in keys:
        tensors.pop(key, None)
    report.fresh += keys
    report.adapted.append(
        f"{' and '.join(model.head_names)}: {found} in the file, {num_classes} in the model, re-initialized"
    )


def fit_channels(model: Model, tensors: dict[str, Tensor], report: LoadReport) -> None:
    """Adapt RGB filters to the model's input channels, in the first convolution and any other that reads pixels."""
    expected, own = model.config.num_channels, model.state_dict()
    first = next((name for name, tensor in own.items() if tensor.ndim == 4), "")
    if first not in tensors or tensors[first].ndim != 4 or tensors[first].shape[1] in (0, expected):
        return
    given = tensors[first].shape[1]
    for key, shape in ((name, tensor.shape) for name, tensor in own.items() if name in tensors):
        filters = tensors[key]
        if filters.ndim == len(shape) == 4 and filters.shape[1] == given and shape[1] == expected:
            tensors[key], how = adapt_filters(filters, expected)
            report.adapted.append(f"{key}: {given} channels in the file, {expected} in the model, {how}")


def adapt_filters(filters: Tensor, num_channels: int) -> tuple[Tensor, str]:
    """Sum filters to one channel, or repeat and rescale them for several, so that responses keep their scale."""
    if num_channels == 1:
        return filters.sum(1, keepdim=True), "summed over channels"
    given = filters.shape[1]
    repeated = filters.repeat(1, -(-num_channels // given), 1, 1)[:, :num_channels]
    return repeated * (given / num_channels), "repeated and rescaled"


def fit_positions(model: Model, tensors: dict[str, Tensor], report: LoadReport, source: Model | None) -> None:
    """Resample position tables from the grid of the ``source`` model; without it, assume a square grid."""
    source_modules = dict(source.named_modules()) if source is not None else {}
    for path, module in model.named_modules():
        if not isinstance(module, POSITIONS):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            given = tensors.get(f"{path}.{name}")
            if given is None or not equal_except_rows(given, parameter):
                continue
            original = source_modules.get(path)
            if isinstance(module, RelativeBias) and name == "table" and not has_table_shape(given, original):
                fit_window_table(module, f"{path}.{name}", effective_window(model, path), tensors, report)
                continue
            old_grid = original.grid if isinstance(original, POSITIONS) else infer_grid(given, module)
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
    except ValueError:  # the number of rows does not match the grid: check_fit reports both shapes
        return
    tensors[key] = adapted
    if old_grid != module.grid and adapted is not given:
        report.adapted.append(
            f"{key}: made for a grid of {format_grid(old_grid)}, resampled to {format_grid(module.grid)}"
        )
    elif adapted is not given:
        report.adapted.append(f"{key}: no rows for class and distillation tokens in the file, zeros added")


def fit_window_table(
    module: RelativeBias, key: str, window: Grid, tensors: dict[str, Tensor], report: LoadReport
) -> None:
    """Adapt a third-party relative bias table to the model's window.

    If the feature map is smaller than a window, third-party tables have the size of the map (``window``), and Vitreous
    tables that of the full window: the table is resampled to ``window`` if needed, then padded around its center.
    """
    given = tensors[key]
    old_grid = None if given.shape == module.table.shape else infer_window(given, window)
    if old_grid is None:
        return
    table = resample(given, offsets(old_grid), offsets(window))
    tensors[key] = pad_table(table, window, module.grid)
    resampled = f", resampled to {format_grid(window)}" if old_grid != window else ""
    padded = f", padded to {format_grid(module.grid)}" if window != module.grid else ""
    report.adapted.append(f"{key}: made for a grid of {format_grid(old_grid)}{resampled}{padded}")


def pad_table(table: Tensor, grid: Grid, larger: Grid) -> Tensor:
    """Pad a table of relative offsets to those of a larger grid by repeating its edges."""
    rows, columns = (large - small for large, small in zip(larger, grid, strict=True))
    offset_map = rearrange(table, "b (y x) h -> b h y x", y=offsets(grid)[0])
    padded = F.pad(offset_map.float(), (columns, columns, rows, rows), mode="replicate")
    return rearrange(padded, "b h y x -> b (y x) h").to(table.dtype)


def effective_window(model: Model, path: str) -> Grid:
    """Return the window size that a relative bias has at the model's image size."""
    module, attention = model.get_submodule(path), model.get_submodule(path.rpartition(".")[0])
    if not isinstance(attention, WindowAttention):
        assert isinstance(module, RelativeBias)
        return module.grid
    stage = re.search(r"stages\.(\d+)\.", path)
    return attention.partition(grid_of(model.config.image_size, model.strides[int(stage[1]) if stage else -1])).window


def has_table_shape(table: Tensor, module: nn.Module | None) -> bool:
    return isinstance(module, RelativeBias) and table.shape == module.table.shape


def equal_except_rows(a: Tensor, b: Tensor) -> bool:
    """Return whether two shapes are equal except for the number of rows."""
    return a.ndim == b.ndim and a.shape[:-2] == b.shape[:-2] and a.shape[-1:] == b.shape[-1:]


def infer_grid(table: Tensor, module: Learned | LearnedAxes | RelativeBias) -> Grid | None:
    """Infer the grid of a table from its number of rows: a square if possible, else the model's grid."""
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


def infer_window(table: Tensor, window: Grid) -> Grid | None:
    """Infer the window of a table from its number of rows: ``window`` if that matches, else a square."""
    rows, columns = offsets(window)
    if table.shape[-2] == rows * columns:
        return window
    side = math.isqrt(table.shape[-2])
    return ((side + 1) // 2, (side + 1) // 2) if side % 2 and side * side == table.shape[-2] else None


def format_grid(grid: Grid) -> str:
    return f"{grid[0]}×{grid[1]}"


def check_dtypes(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: str) -> None:
    invalid = [
        f"{name} is {tensor.dtype}"
        for name, tensor in tensors.items()
        if tensor.dtype not in FLOATS and name in expected and tensor.dtype != expected[name].dtype
    ]
    if invalid:
        raise ValueError(f"{where} must contain floating-point weights: {shorten(invalid)}")


def check_fit(
    model: Model,
    tensors: Mapping[str, Tensor],
    where: str,
    translation: Translation | None = None,
    may_be_missing: list[str] | None = None,
) -> None:
    """Require the model's tensor names and shapes; the error lists all mismatches by their names in the file."""
    origin = translation.origin if translation is not None else {}
    expected = model.state_dict()
    missing = [name for name in expected if name not in tensors and name not in (may_be_missing or [])]
    unknown = [origin.get(name, name) for name in tensors if name not in expected]
    mismatched = [
        f"{origin.get(name, name)} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}"
        for name, tensor in tensors.items()
        if name in expected and tensor.shape != expected[name].shape
    ]
    if translation is not None:
        unknown += translation.unmapped
    problems = [
        f"{len(names)} {problem} ({shorten(names)})"
        for names, problem in ((missing, "missing"), (unknown, "unknown"), (mismatched, "with a different shape"))
        if names
    ]
    if problems:
        raise ValueError(
            f"{where} does not fit {type(model).__name__}: {'; '.join(problems)}; check that it is for this model"
        )
