"""Export a model to a file that runs without Vitreous: ONNX, or a package compiled for this CPU with AOTInductor.

The metadata of the file holds the preprocessing and the class names. A file is written only after its outputs were
compared with the original's, on several batch sizes and, where height and width are dynamic, on several image sizes.
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.deploy.formats import FORMATS, Format, Metadata, Run, format_of
from vitreous.deploy.tracing import root_cause, trace, why_fixed
from vitreous.files import atomic_replacement
from vitreous.models.base import Model
from vitreous.options import checked_choice, checked_float
from vitreous.spec import Size, Spec, pair
from vitreous.weights.formats import FORMAT, VERSION, family_of

Sizes = Literal["auto", "any", "fixed"]

BATCHES = (1, 2, 5)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Check:
    """Comparison on one batch: ``error`` is ‖exported − original‖ / ‖original‖ of the worst image."""

    batch: int
    image_size: Size
    error: float


@dataclass(frozen=True)
class Exported:
    """Result of an export: the file, the sizes that it accepts, and the comparisons with the original."""

    path: Path
    format: str
    num_bytes: int
    image_size: Size
    multiple_of: Size | None  # accepts any height and width that are multiples of these; None: only ``image_size``
    why_fixed: str  # empty where height and width are dynamic
    checks: tuple[Check, ...]

    @property
    def error(self) -> float:
        return max(check.error for check in self.checks)


class ExportMismatch(ValueError):
    """The outputs of the exported model differ from the original's by more than the tolerance."""


def export(
    model: Model,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    image_size: int | Size | None = None,
    sizes: Sizes = "auto",
    batches: tuple[int, ...] = BATCHES,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Export a model to ONNX (``.onnx``) or to a package compiled with AOTInductor (``.pt2``).

    The file accepts any batch size, and any height and width where the model allows it. It computes the model in
    evaluation mode and float32; the model itself is left unchanged.

    >>> export(model, "model.onnx").checks

    Args:
        model: A Vitreous model.
        path: The file to write.
        format: "onnx" or "aoti"; by default by the suffix of ``path``.
        image_size: Size of the input in pixels; by default the model's own.
        sizes: "auto" makes height and width dynamic where that is known to work, "any" tries it for every model, which
            may take minutes, and "fixed" never does.
        batches: Batch sizes on which the file is compared with the model.
        tolerance: Largest relative error of an image's outputs.

    Returns:
        The result with its ``checks``; ``why_fixed`` is the reason where the image size is fixed.

    Raises:
        ValueError: If the model cannot be exported, or a package or compiler is missing.
        ExportMismatch: If the outputs differ; no file is written.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if not isinstance(model, Model):
        raise ValueError(f"export needs a Vitreous model, got {type(model).__name__}")
    if (
        not isinstance(batches, list | tuple)
        or not batches
        or not all(type(size) is int and size > 0 for size in batches)
    ):
        raise ValueError(f"batches must be positive batch sizes such as (1, 2, 5), got {batches!r}")
    tolerance = checked_float("tolerance", tolerance)
    checked_choice("sizes", sizes, get_args(Sizes))
    path = Path(path)
    name = format_of(path, format)
    FORMATS[name].check()
    size = pair(image_size or model.spec.preprocess.image_size, "image_size")
    plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    with atomic_replacement(path, keep_suffix=True) as temporary:
        attempt = ExportAttempt(plain, FORMATS[name], temporary, size, batches, tolerance)
        reason = {"auto": why_fixed(plain, size), "any": "", "fixed": "as requested"}[sizes]
        checks, reason = (attempt.export_fixed_size(), reason) if reason else attempt.export_any_size()
        num_bytes = temporary.stat().st_size
    return Exported(path, name, num_bytes, size, None if reason else plain.strides[-1], reason, checks)


@dataclass(frozen=True)
class ExportAttempt:
    """One export: the model, its target, and the cases to compare."""

    model: Model
    format: Format
    path: Path
    image_size: Size
    batches: tuple[int, ...]
    tolerance: float

    def export_any_size(self) -> tuple[tuple[Check, ...], str]:
        """Export with dynamic height and width, or else at a fixed size; return the checks and the reason if fixed."""
        try:
            self.write(any_size=True)
            return self.compare([*self.cases_at_own_size(), *self.cases_at_other_sizes()]), ""
        except Exception as error:  # tracers and compilers raise many types; fall back to a fixed size
            reason = f"export with dynamic sizes failed ({root_cause(error)})"
        return self.export_fixed_size(), reason

    def export_fixed_size(self) -> tuple[Check, ...]:
        try:
            self.write(any_size=False)
        except Exception as error:
            raise ValueError(f"{type(self.model).__name__} cannot be exported: {root_cause(error)}") from error
        return self.compare(self.cases_at_own_size())

    def write(self, *, any_size: bool) -> None:
        program = trace(self.model, self.image_size, any_size=any_size)
        multiple_of = self.model.strides[-1] if any_size else None
        self.format.write(program, self.path, describe(self.model, self.image_size, multiple_of))

    def cases_at_own_size(self) -> list[tuple[int, Size]]:
        return [(batch, self.image_size) for batch in self.batches]

    def cases_at_other_sizes(self) -> list[tuple[int, Size]]:
        """Return a minimal wide image, and a tall one slightly larger than the model's own."""
        (down, across), (height, width) = self.model.strides[-1], self.image_size
        return [(1, (2 * down, 3 * across)), (2, (height + 2 * down, width + across))]

    def compare(self, cases: list[tuple[int, Size]]) -> tuple[Check, ...]:
        run = self.format.run(self.path)
        checks = tuple(Check(batch, size, export_error(self.model, run, batch, size)) for batch, size in cases)
        worst = max(checks, key=lambda check: check.error)
        if not worst.error <= self.tolerance:
            raise ExportMismatch(
                f"the exported model differs from the original by {worst.error:.1e} at batch {worst.batch}, "
                f"{worst.image_size[0]}×{worst.image_size[1]} pixels; the tolerance is {self.tolerance:.0e}, so no "
                "file was written"
            )
        return checks


@torch.no_grad()
def export_error(model: Model, run: Run, batch: int, size: Size) -> float:
    """Compute the error on seeded noise; infinite if shapes differ or outputs are not finite."""
    noise = torch.Generator().manual_seed(batch)
    images = torch.randn(batch, model.config.num_channels, *size, generator=noise)
    expected, found = model(images), run(images)
    return worst_relative_error(found, expected) if found.shape == expected.shape else float("inf")


def worst_relative_error(found: Float[Tensor, b * k], expected: Float[Tensor, b * k]) -> float:
    """Return the largest ‖found − expected‖ / ‖expected‖ of the images in a batch; infinite for NaN."""
    errors = (found - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    return float(errors.nan_to_num(nan=float("inf")).max())


def describe(model: Model, image_size: Size, multiple_of: Size | None) -> dict[str, str]:
    """Return the metadata of an exported file: preprocessing, labels, task, config and edits, as JSON strings."""
    preprocess = replace(model.spec.preprocess, image_size=image_size)
    values: dict[str, Any] = {
        "preprocess": asdict(preprocess),
        "labels": list(model.spec.labels),
        "task": model.spec.task,
        "config": model.config.to_json(),
        "edits": [edit.to_json() for edit in model.edits],
        "multiple_of": multiple_of,
    }
    output = "logits" if model.main_output == "class" else model.main_output
    texts = {"format": FORMAT, "version": str(VERSION), "family": family_of(model.config), "output": output}
    return texts | {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def read_spec(path: str | os.PathLike[str]) -> Spec:
    """Read preprocessing, labels and task from the metadata of an exported file."""
    metadata = read_metadata(path)
    if "preprocess" not in metadata:
        raise ValueError(f"{path} has no Vitreous metadata: it was not written by vitreous export")
    return Spec.from_json(
        {key: json.loads(metadata[key]) for key in ("preprocess", "labels", "task") if key in metadata}
    )


def read_metadata(path: str | os.PathLike[str]) -> Metadata:
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; check the path")
    return FORMATS[format_of(path)].read(path)
