"""Backends of ``vt.accelerate``, engine × precision: prepare one, verify it against the plain model, time it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous import machine
from vitreous.deploy import onnx_runtime
from vitreous.deploy.compiled import engine as inductor
from vitreous.deploy.engine import EngineUnavailable, Precision, ProgressCallback
from vitreous.deploy.native import build, calibrate, engine
from vitreous.deploy.native.convert import PrecisionPlan
from vitreous.deploy.native.linear import packing
from vitreous.deploy.native.mixed_precision import PlanSearch, relative_error
from vitreous.deploy.shortcuts import optimize_for_inference
from vitreous.models.base import Model

EngineName = Literal["eager", "native", "inductor", "onnxruntime"]
Backend = tuple[EngineName, Precision]

#: Tolerance of float32 backends, which differ from the plain model only in the order of summation.
FP32_TOLERANCE = 1e-4
TIMING_SECONDS = 1.0  # per comparison of two backends, which takes at least three rounds


@dataclass(frozen=True)
class Job:
    """The model to accelerate, example batches, and the tolerated error of its logits relative to their norm."""

    model: Model
    examples: Sequence[Float[Tensor, "b c y x"]]
    tolerance: float
    static: bool = False
    plan: PrecisionPlan | None = None  # found earlier; saves the mixed-precision search
    progress: ProgressCallback = field(default=lambda message: None, compare=False)

    def tolerance_in(self, precision: Precision) -> float:
        return min(FP32_TOLERANCE, self.tolerance) if precision == "fp32" else self.tolerance


@dataclass(frozen=True)
class Candidate:
    """One backend and its result; ``module`` is None where it was rejected, for the given ``reason``."""

    engine: EngineName
    precision: Precision
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    reason: str = ""
    error: float = float("nan")
    speed_up: float = float("nan")
    plan: PrecisionPlan | None = field(default=None, repr=False)


def prepare_eager(job: Job, precision: Precision) -> Candidate:
    optimized = optimize_for_inference(job.model)
    return Candidate("eager", precision, optimized, reason=optimized.summary)


def prepare_native(job: Job, precision: Precision) -> Candidate:
    level, kernel = build.library()
    optimized, example = optimize_for_inference(job.model), job.examples[0]
    layers = engine.linear_layers(optimized, example)
    if not layers:
        raise EngineUnavailable("the model has no linear layers")
    max_activation = packing(kernel).max_activation
    ranges = calibrate.calibrate_ranges(optimized, example, layers, top=max_activation) if job.static else None
    if job.plan and job.plan.precisions.keys() == layers.keys() and precision in job.plan.precisions.values():
        plan = job.plan
    elif precision == "int8":
        higher: Precision = "bf16" if level == "amx" else "int16"
        num_read, progress = optimized.num_read_tokens, job.progress
        search = PlanSearch(optimized, example, "int8", higher, job.tolerance, num_read, ranges, progress)
        plan = search.run()
    else:
        plan = PrecisionPlan(dict.fromkeys(layers, precision))
    reason = f"{plan.count(precision)} of {len(layers)} linear layers in {precision}, {level} kernels"
    if plan.precise_tokens:
        reason += "; class token in higher precision"
    return Candidate("native", precision, engine.to_native(optimized, plan, ranges), reason=reason, plan=plan)


def prepare_inductor(job: Job, precision: Precision) -> Candidate:
    if precision == "bf16" and "amx_tile" not in machine.cpu_flags():
        raise EngineUnavailable("bfloat16 is only faster with AMX tiles, which this CPU does not have")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    optimized, cache = optimize_for_inference(job.model), machine.cache_folder()
    compiled = inductor.compile_blocks(optimized, job.examples, dtype=dtype, cache=cache, progress=job.progress)
    reason = f"blocks compiled one by one; {optimized.summary}".strip("; ")
    return Candidate("inductor", precision, compiled, reason=reason)


def prepare_onnx_runtime(job: Job, precision: Precision) -> Candidate:
    if len(job.examples) > 1:
        raise EngineUnavailable("its graph is exported for a single image size")
    job.progress("export to ONNX")
    module = onnx_runtime.to_onnx_runtime(job.model, job.examples[0], int8=precision == "int8")
    return Candidate("onnxruntime", precision, module)


#: In the order in which they are tried: quick to prepare first.
BACKENDS: dict[Backend, Callable[[Job, Precision], Candidate]] = {
    ("eager", "fp32"): prepare_eager,
    ("native", "fp32"): prepare_native,
    ("native", "bf16"): prepare_native,
    ("native", "int16"): prepare_native,
    ("native", "int8"): prepare_native,
    ("inductor", "fp32"): prepare_inductor,
    ("inductor", "bf16"): prepare_inductor,
    ("onnxruntime", "fp32"): prepare_onnx_runtime,
    ("onnxruntime", "int8"): prepare_onnx_runtime,
}


def benchmark(job: Job, backend: Backend) -> Candidate:
    """Prepare a backend, verify it, and time it against the plain model."""
    candidate = verify(job, backend)
    if candidate.module is None:
        return candidate
    return replace(candidate, speed_up=speed_up(job.model, candidate.module, job.examples[0]))


@torch.inference_mode()
def verify(job: Job, backend: Backend) -> Candidate:
    """Prepare a backend and compare its outputs with those of the plain model."""
    name, precision = backend
    job.progress(f"{name}, {precision}")
    try:
        candidate = BACKENDS[backend](job, precision)
    except EngineUnavailable as unavailable:
        return Candidate(name, precision, reason=str(unavailable))
    assert candidate.module is not None
    error = max(output_error(job, candidate.module, images) for images in verification_batches(job.examples))
    tolerance = job.tolerance_in(precision)
    if not error <= tolerance:
        reason = f"its error exceeds the tolerance of {tolerance:.2g}"
        return replace(candidate, module=None, error=error, reason=reason)
    return replace(candidate, error=error)


def output_error(job: Job, module: nn.Module, images: Float[Tensor, "b c y x"]) -> float:
    """Compute the relative error of the outputs; the largest one where a model has several."""
    found, expected = module(images), job.model(images)
    if isinstance(expected, dict):
        return max(relative_error(found[name], expected[name]) for name in expected)
    return relative_error(found, expected)


def verification_batches(examples: Sequence[Tensor]) -> list[Tensor]:
    """Return the examples and two other batch sizes: a single image, and one image more than the first example."""
    return [*examples, examples[0][:1], torch.cat([examples[0], examples[0][-1:].flip(-1)])]


@torch.inference_mode()
def speed_up(plain: nn.Module, fast: nn.Module, images: Float[Tensor, "b c y x"]) -> float:
    """Time both modules in alternation and return the ratio of their best times."""
    seconds: dict[nn.Module, list[float]] = {plain: [], fast: []}
    until = time.perf_counter() + TIMING_SECONDS
    while time.perf_counter() < until or len(seconds[fast]) < 3:
        for module, times in seconds.items():
            start = time.perf_counter()
            module(images)
            times.append(time.perf_counter() - start)
    return min(seconds[plain]) / min(seconds[fast])
