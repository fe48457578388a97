"""Run a model with the fastest CPU backend whose outputs stay within a tolerance.

>>> fast = vt.accelerate(model, images)
>>> fast(images)                     # the logits
>>> print(fast.report)               # the chosen backend, its error and speed-up, and why others were rejected
>>> fast.model                       # the original model, unchanged: use it to record, train and save
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, SupportsIndex, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

import vitreous
from vitreous import machine
from vitreous.deploy.candidates import BACKENDS, Backend, Candidate, EngineName, Job, benchmark, verify
from vitreous.deploy.engine import Precision, ProgressCallback, copy_sharing_weights
from vitreous.deploy.native.convert import PrecisionPlan
from vitreous.files import digest, write_atomically
from vitreous.models.base import Model
from vitreous.options import check_callable, checked_texts, did_you_mean
from vitreous.samples import Inputs
from vitreous.spec import Spec

Example = Float[Tensor, "b c y x"] | Sequence[Float[Tensor, "b c y x"]]

#: Backends that are slow to prepare are only tried while no other reaches this speed-up.
FAST_ENOUGH = 1.25
SLOW_TO_PREPARE = ("inductor", "onnxruntime")


@dataclass(frozen=True)
class Report:
    """The chosen backend and all ``candidates``; ``print(report)`` shows them as a table.

    ``cached`` means that the choice was made earlier and only verified now.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    batch: int
    threads: int
    cached: bool
    tolerance: float

    @property
    def engine(self) -> EngineName:
        return self.chosen.engine

    @property
    def precision(self) -> Precision:
        return self.chosen.precision

    @property
    def error(self) -> float:
        """Largest relative error of the logits, ‖fast − plain‖ / ‖plain‖, on the examples."""
        return self.chosen.error

    @property
    def speed_up(self) -> float:
        """Speed-up over the plain model on the first example."""
        return self.chosen.speed_up

    @property
    def reasons(self) -> tuple[str, ...]:
        """What each candidate does, or why it was rejected."""
        return tuple(f"{one.engine}, {one.precision}: {one.reason}" for one in self.candidates if one.reason)

    def __str__(self) -> str:
        how = "cached choice" if self.cached else "fastest within tolerance"
        head = f"{self.engine}, {self.precision}: {self.speed_up:.2f} × the plain model ({how}; "
        head += f"batch {self.batch}, {self.threads} threads), relative error {self.error:.1e}"
        return "\n".join([head, *(report_line(one, one is self.chosen) for one in self.candidates)])


def report_line(row: Candidate, chosen: bool) -> str:
    numbers = f"{row.speed_up:6.2f} ×  error {row.error:.1e}" if row.module is not None else f"{'rejected':>22}"
    return f"{'→' if chosen else ' '} {row.engine:<12}{row.precision:<6}{numbers}  {row.reason}".rstrip()


class Accelerated(nn.Module):
    """An accelerated model for inference: images in, logits out. ``model`` is the original, ``report`` the choice.

    Some weights are copied and others shared: after training ``model`` further, accelerate it again.
    """

    def __init__(self, model: Model, report: Report) -> None:
        super().__init__()
        self.report = report
        self._fast = (report.chosen.module,)
        self._model = (model,)  # tuples, so that neither is registered as a submodule: this module has no parameters

    @property
    def model(self) -> Model:
        return self._model[0]

    @property
    def spec(self) -> Spec:
        return self.model.spec

    def outputs(self, inputs: Inputs) -> dict[str, Tensor]:
        """Compute the same outputs as ``model.outputs``, by name; the logits of several heads are averaged."""
        found = self(inputs.images)
        return found if isinstance(found, dict) else {self.model.main_output: found}

    @torch.inference_mode()
    def forward(self, images: Float[Tensor, "b c y x"]) -> Any:
        self.model.check_images(images, smallest=(1, 1))
        fast = self._fast[0]
        assert fast is not None
        return fast(images)

    def accelerate_alike(self, model: Model, example: Example) -> Accelerated:
        """Accelerate another model with the backend of this one; it runs plain where that backend does not fit."""
        report = self.report
        return accelerate(model, example, report.precision, engines=[report.engine], tolerance=report.tolerance)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("an accelerated model cannot be copied or pickled; copy its .model and accelerate that again")

    def extra_repr(self) -> str:
        return f"{type(self.model).__name__}, {self.report.engine}, {self.report.precision}"


def accelerate(
    model: Model,
    example: Example,
    precision: Precision | Literal["auto"] = "auto",
    *,
    tolerance: float = 0.02,
    engines: Sequence[EngineName] | None = None,
    static: bool = False,
    fresh: bool = False,
    progress: ProgressCallback | None = None,
) -> Accelerated:
    """Benchmark the backends that this CPU offers and keep the fastest whose logits stay within ``tolerance``.

    >>> fast = vt.accelerate(model, images)
    >>> logits = fast(images)
    >>> print(fast.report)

    The choice is cached per model configuration, machine and versions; a cached choice is verified before it is used.

    Args:
        model: A Vitreous model on the CPU; it is left unchanged.
        example: A batch of real images of the size and number you will use, or several batches of different sizes.
            Speed is measured on the first, the error on all.
        precision: Restrict the search to one precision: fp32, bf16, int16 or int8.
        tolerance: Largest error of the logits relative to their norm. float32 backends must stay within 1e-4 as well.
        engines: Engines to try: eager, native, inductor, onnxruntime. By default all, except that Inductor and ONNX
            Runtime, which take long to prepare, are skipped where another engine is fast enough already.
        static: Calibrate the ranges of int8 activations on the example instead of computing them for every token.
        fresh: Ignore a cached choice and benchmark again.
        progress: Called with a short description of each step; by default a status line in the terminal.

    Returns:
        The accelerated model. If no backend is both faster and accurate enough, it runs the plain model.
    """
    examples = check_examples(model, example)
    backends = check_backends(precision, get_args(EngineName) if engines is None else checked_texts("engines", engines))
    if not isinstance(tolerance, int | float) or not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance!r}")
    check_callable("progress", progress)
    plain = copy_sharing_weights(model).eval()
    with progress_or_status(progress) as report_progress:
        job = Job(plain, examples, tolerance, static, progress=report_progress)
        return Accelerated(model, choose(job, backends, fresh=fresh, try_all=engines is not None))


def choose(job: Job, backends: list[Backend], *, fresh: bool, try_all: bool) -> Report:
    """Load the cached choice, or benchmark the backends and cache the fastest."""
    cache_file = machine.cache_folder() / f"choice-{cache_key(job, backends)}.json"
    batch, threads = len(job.examples[0]), torch.get_num_threads()
    if not fresh and (known := load_choice(cache_file, job)) is not None:
        return Report(known, (known,), batch, threads, cached=True, tolerance=job.tolerance)
    candidates = benchmark_all(job, backends, fast_enough=math.inf if try_all else FAST_ENOUGH)
    if not any(one.module for one in candidates):
        reason = "the plain model: no backend is within tolerance"
        candidates.append(Candidate("eager", "fp32", job.model, reason=reason, error=0.0, speed_up=1.0))
    chosen = max((one for one in candidates if one.module), key=lambda one: one.speed_up)
    choice = {
        "engine": chosen.engine,
        "precision": chosen.precision,
        "speed_up": chosen.speed_up,
        "choice": asdict(chosen.plan) if chosen.plan else None,
    }
    with contextlib.suppress(OSError):
        write_atomically(cache_file, json.dumps(choice, indent=1).encode())
    machine.prune_cache()
    return Report(chosen, tuple(candidates), batch, threads, cached=False, tolerance=job.tolerance)


def benchmark_all(job: Job, backends: list[Backend], fast_enough: float) -> list[Candidate]:
    """Benchmark the backends, skipping those that are slow to prepare once another is fast enough."""
    candidates: list[Candidate] = []
    for backend in backends:
        if backend[0] in SLOW_TO_PREPARE and any(one.module and one.speed_up >= fast_enough for one in candidates):
            candidates.append(Candidate(*backend, reason="not tried: another backend is fast enough"))
        else:
            candidates.append(benchmark(job, backend))
    return candidates


def load_choice(cache_file: Path, job: Job) -> Candidate | None:
    """Prepare the cached backend and verify it; None if it fails. Its speed-up is the one measured originally."""
    try:
        saved = json.loads(cache_file.read_text())
        backend, speed_up = (saved["engine"], saved["precision"]), float(saved["speed_up"])
        plan = PrecisionPlan(**saved["choice"]) if saved["choice"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if backend not in BACKENDS:
        return None
    machine.mark_used(cache_file)
    few = job.examples if job.static else [images[:2] for images in job.examples]  # static ranges need all images
    candidate = verify(replace(job, examples=few, plan=plan), backend)
    return replace(candidate, speed_up=speed_up) if candidate.module is not None else None


def cache_key(job: Job, backends: list[Backend]) -> str:
    """Digest of all that a choice depends on, except the weights: a cached choice is verified at every start."""
    versions = vitreous.__version__, torch.__version__, torch.get_num_threads()
    here = machine.cpu_name(), sorted(machine.cpu_flags()), machine.c_compiler()
    shapes = [tuple(images.shape) for images in job.examples]
    words = repr((job.model.config, job.model.edits, shapes, job.tolerance, job.static, backends, here, versions))
    return digest(words)[:16]


def check_examples(model: Model, example: Example) -> list[Tensor]:
    if not isinstance(model, Model):
        raise ValueError(f"accelerate needs a Vitreous model, got {type(model).__name__}")
    if {parameter.device.type for parameter in model.parameters()} != {"cpu"}:
        raise ValueError("accelerate needs a model on the CPU; move it with model.cpu()")
    examples: list[Any] = list(example) if isinstance(example, list | tuple) else [example]
    if not all(isinstance(images, Tensor) for images in examples):
        got = type(example).__name__
        raise ValueError(f"example must be a batch of images as a tensor, or a list of batches; got {got}")
    if not examples:
        raise ValueError("accelerate needs a batch of images, got an empty list")
    for images in examples:
        model.check_images(images, smallest=(1, 1))
        if len(images) == 0:
            raise ValueError("the example is an empty batch; give at least one image")
    return examples


def check_backends(precision: str, engines: Sequence[str]) -> list[Backend]:
    """Return the backends that an engine list and a precision select."""
    known = ("auto", *get_args(Precision))
    if precision not in known:
        raise ValueError(
            f"precision must be one of {', '.join(known)}, got {precision!r}{did_you_mean(precision, known)}"
        )
    for engine in engines:
        if engine not in get_args(EngineName):
            raise ValueError(f"unknown engine {engine!r}{did_you_mean(engine, get_args(EngineName))}")
    backends = [backend for backend in BACKENDS if backend[0] in engines and precision in ("auto", backend[1])]
    if not backends:
        raise ValueError(f"none of the engines {', '.join(engines)} runs in {precision}")
    return backends


@contextlib.contextmanager
def progress_or_status(progress: ProgressCallback | None) -> Iterator[ProgressCallback]:
    """Yield the caller's callback, or one that updates a status line if stderr is a terminal."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or (lambda message: None)
        return
    from rich.console import Console

    with Console(stderr=True).status("Benchmarking backends") as status:
        yield lambda message: status.update(f"Benchmarking backends: {message}")
