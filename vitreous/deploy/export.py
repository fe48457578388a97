"""A model as a file that runs without Vitreous: ONNX for any runtime, or a package compiled for this kind of machine.

The file says how to prepare images and what the classes are called. It appears only after it has been run beside the
original, on several batches and, where it takes any height and width, on several sizes: one that disagrees is refused.
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
from vitreous.files import replacing
from vitreous.models.base import Model
from vitreous.options import checked_choice, checked_float
from vitreous.spec import Size, Spec, pair
from vitreous.weights.formats import FORMAT, VERSION, family_of

Sizes = Literal["auto", "any", "fixed"]

BATCHES = (1, 2, 5)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Check:
    """One batch through both: ``error`` is ‖exported − original‖ / ‖original‖ of the worst image."""

    batch: int
    image_size: Size
    error: float


@dataclass(frozen=True)
class Exported:
    """What was written and how well it agrees."""

    path: Path
    format: str
    num_bytes: int
    image_size: Size
    multiple_of: Size | None  # any height and width that are multiples of these; None: only ``image_size``
    why_fixed: str  # empty where height and width are free
    checks: tuple[Check, ...]

    @property
    def error(self) -> float:
        return max(check.error for check in self.checks)


class Disagrees(ValueError):
    """The exported model does not compute what the original computes."""


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
    """Write ``model`` to ``path``: ``.onnx``, or ``.pt2``, a package compiled with AOTInductor.

    Any batch size is taken, and any height and width where the model allows it; ``why_fixed`` of the result says why
    not. ``sizes="any"`` tries it with models too that are known to take minutes, "fixed" with none. The model itself
    stays as it is, in training or not; what is exported is its evaluation mode, in float32.

    >>> export(model, "model.onnx").checks
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if not isinstance(model, Model):
        raise ValueError(f"export needs a Vitreous model, got {type(model).__name__}")
    if (
        not isinstance(batches, list | tuple)
        or not batches
        or not all(type(size) is int and size > 0 for size in batches)
    ):
        raise ValueError(f"batches must be sizes to try, each at least 1, got {batches!r}")
    tolerance = checked_float("tolerance", tolerance)
    checked_choice("sizes", sizes, get_args(Sizes))
    path = Path(path)
    name = format_of(path, format)
    FORMATS[name].check()
    size = pair(image_size or model.spec.preprocess.image_size, "image_size")
    plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    with replacing(path, keep_suffix=True) as temporary:
        attempt = Attempt(plain, FORMATS[name], temporary, size, batches, tolerance)
        reason = {"auto": why_fixed(plain, size), "any": "", "fixed": "as asked for"}[sizes]
        checks, reason = (attempt.at_one_size(), reason) if reason else attempt.at_any_size()
        num_bytes = temporary.stat().st_size
    return Exported(path, name, num_bytes, size, None if reason else plain.strides[-1], reason, checks)


@dataclass(frozen=True)
class Attempt:
    """A model on its way to a file."""

    model: Model
    format: Format
    path: Path
    image_size: Size
    batches: tuple[int, ...]
    tolerance: float

    def at_any_size(self) -> tuple[tuple[Check, ...], str]:
        """The checks of a file that takes any height and width; else those of a fixed one, and why."""
        try:
            self.write(any_size=True)
            return self.compare([*self.batches_at_own_size(), *self.other_sizes()]), ""
        except Exception as error:  # tracers and compilers raise many kinds; what is left is the fixed size
            reason = f"with free ones it failed ({root_cause(error)})"
        return self.at_one_size(), reason

    def at_one_size(self) -> tuple[Check, ...]:
        try:
            self.write(any_size=False)
        except Exception as error:
            raise ValueError(f"{type(self.model).__name__} cannot be exported: {root_cause(error)}") from error
        return self.compare(self.batches_at_own_size())

    def write(self, *, any_size: bool) -> None:
        program = trace(self.model, self.image_size, any_size=any_size)
        multiple_of = self.model.strides[-1] if any_size else None
        self.format.write(program, self.path, describe(self.model, self.image_size, multiple_of))

    def batches_at_own_size(self) -> list[tuple[int, Size]]:
        return [(batch, self.image_size) for batch in self.batches]

    def other_sizes(self) -> list[tuple[int, Size]]:
        """The smallest wide image, and a tall one that is somewhat larger than the model's own."""
        (down, across), (height, width) = self.model.strides[-1], self.image_size
        return [(1, (2 * down, 3 * across)), (2, (height + 2 * down, width + across))]

    def compare(self, cases: list[tuple[int, Size]]) -> tuple[Check, ...]:
        run = self.format.run(self.path)
        checks = tuple(Check(batch, size, disagreement(self.model, run, batch, size)) for batch, size in cases)
        worst = max(checks, key=lambda check: check.error)
        if not worst.error <= self.tolerance:
            raise Disagrees(
                f"the exported model disagrees with the original by {worst.error:.1e} at batch {worst.batch}, "
                f"{worst.image_size[0]}×{worst.image_size[1]} pixels; at most {self.tolerance:.0e} is allowed, so no "
                "file was written"
            )
        return checks


@torch.no_grad()
def disagreement(model: Model, run: Run, batch: int, size: Size) -> float:
    """On seeded noise; infinite where the shapes differ or a number is none."""
    noise = torch.Generator().manual_seed(batch)
    images = torch.randn(batch, model.config.num_channels, *size, generator=noise)
    wanted, given = model(images), run(images)
    return relative_error(given, wanted) if given.shape == wanted.shape else float("inf")


def relative_error(given: Float[Tensor, b * k], wanted: Float[Tensor, b * k]) -> float:
    """Of the worst image."""
    errors = (given - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    return float(errors.nan_to_num(nan=float("inf")).max())


def describe(model: Model, image_size: Size, multiple_of: Size | None) -> dict[str, str]:
    """Everything needed to prepare an image and to name the answer, as JSON under a few keys."""
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
    """How an exported file wants its images, and what its classes are called."""
    metadata = read_metadata(path)
    if "preprocess" not in metadata:
        raise ValueError(f"{path} does not say how to prepare images: it was not written by vitreous export")
    return Spec.from_json(
        {key: json.loads(metadata[key]) for key in ("preprocess", "labels", "task") if key in metadata}
    )


def read_metadata(path: str | os.PathLike[str]) -> Metadata:
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; check the path")
    return FORMATS[format_of(path)].read(path)
