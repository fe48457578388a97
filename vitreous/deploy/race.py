"""The ways to run a model, tried one after the other on this machine: does it work, is it right, is it fast?"""

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
from vitreous.deploy.engine import Tell, Unfit
from vitreous.deploy.native import build, calibrate, engine, fallback
from vitreous.deploy.native.convert import Choice
from vitreous.deploy.native.linear import Kind, rules
from vitreous.deploy.shortcuts import answer_only
from vitreous.models.base import Model

Precision = Literal["fp32", "bf16", "int16", "int8"]
EngineName = Literal["eager", "native", "inductor", "onnxruntime"]

#: float32 is not rounded to less: what differs is the order of the sums.
EXACT = 1e-4
SECONDS = 1.0  # that a comparison of two ways may take, at least three rounds


@dataclass(frozen=True)
class Job:
    """What is to be run, and how far its logits may be off, relative to their length."""

    model: Model
    examples: Sequence[Float[Tensor, "b c y x"]]
    tolerance: float
    static: bool = False
    choice: Choice | None = None  # of bits, made in an earlier race, which saves the search
    tell: Tell = field(default=lambda words: None, compare=False)

    def allowed(self, precision: Precision) -> float:
        return min(EXACT, self.tolerance) if precision == "fp32" else self.tolerance


@dataclass(frozen=True)
class Tried:
    """One way to run the model, and what came of it; ``module`` is None where it is out, for the reason given."""

    engine: EngineName
    precision: Precision
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    reason: str = ""
    error: float = float("nan")
    speed_up: float = float("nan")
    choice: Choice | None = field(default=None, repr=False)


def run_eager(job: Job, precision: Precision) -> Tried:
    shortened = answer_only(job.model)
    return Tried("eager", precision, shortened, reason=shortened.saved)


def run_native(job: Job, precision: Precision) -> Tried:
    wanted: Kind = precision
    level, kernel = build.library()
    shortened, example = answer_only(job.model), job.examples[0]
    layers = engine.linear_layers(shortened, example)
    if not layers:
        raise Unfit("it has no linear layers")
    ranges = calibrate.find_ranges(shortened, example, layers, top=rules(kernel)[3]) if job.static else None
    if job.choice and job.choice.kinds.keys() == layers.keys() and wanted in job.choice.kinds.values():
        choice = job.choice
    elif precision == "int8":
        more: Kind = "bf16" if level == "amx" else "int16"
        read = shortened.read
        choice = fallback.Search(shortened, example, wanted, more, job.tolerance, read, ranges, job.tell).choice()
    else:
        choice = Choice(dict.fromkeys(layers, wanted))
    reason = f"{choice.count(wanted)} of {len(layers)} linear layers in {wanted}, kernel for {level}"
    if choice.fine:
        reason += "; class token in more bits"
    return Tried("native", precision, engine.prepare(shortened, choice, ranges), reason=reason, choice=choice)


def run_inductor(job: Job, precision: Precision) -> Tried:
    if precision == "bf16" and "amx_tile" not in machine.cpu_flags():
        raise Unfit("bfloat16 is only faster with AMX tiles, which this CPU does not have")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    shortened = answer_only(job.model)
    compiled = inductor.prepare(shortened, job.examples, dtype=dtype, cache=machine.cache_folder(), tell=job.tell)
    return Tried("inductor", precision, compiled, reason=f"blocks compiled one by one; {shortened.saved}".strip("; "))


def run_onnx(job: Job, precision: Precision) -> Tried:
    if len(job.examples) > 1:
        raise Unfit("its graph is made for one image size")
    job.tell("export to ONNX")
    return Tried("onnxruntime", precision, onnx_runtime.prepare(job.model, job.examples[0], int8=precision == "int8"))


#: In the order in which they are tried: quick to prepare first.
WAYS: dict[tuple[EngineName, Precision], Callable[[Job, Precision], Tried]] = {
    ("eager", "fp32"): run_eager,
    ("native", "fp32"): run_native,
    ("native", "bf16"): run_native,
    ("native", "int16"): run_native,
    ("native", "int8"): run_native,
    ("inductor", "fp32"): run_inductor,
    ("inductor", "bf16"): run_inductor,
    ("onnxruntime", "fp32"): run_onnx,
    ("onnxruntime", "int8"): run_onnx,
}


def attempt(job: Job, way: tuple[EngineName, Precision]) -> Tried:
    """One way: prepared, compared with the plain model, and timed against it."""
    tried = check(job, way)
    if tried.module is None:
        return tried
    return replace(tried, speed_up=speed_up(job.model, tried.module, job.examples[0]))


@torch.inference_mode()
def check(job: Job, way: tuple[EngineName, Precision]) -> Tried:
    """One way: prepared, and compared with the plain model."""
    name, precision = way
    job.tell(f"{name}, {precision}")
    try:
        tried = WAYS[way](job, precision)
    except Unfit as reason:
        return Tried(name, precision, reason=str(reason))
    assert tried.module is not None
    error = max(relative_error(job, tried.module, images) for images in batches(job.examples))
    if not error <= job.allowed(precision):
        words = f"its error is above the {job.allowed(precision):.2g} allowed"
        return replace(tried, module=None, error=error, reason=words)
    return replace(tried, error=error)


def relative_error(job: Job, module: nn.Module, images: Float[Tensor, "b c y x"]) -> float:
    found, wanted = module(images), job.model(images)
    if isinstance(wanted, dict):
        return max(fallback.relative_error(found[name], wanted[name]) for name in wanted)
    return fallback.relative_error(found, wanted)


def batches(examples: Sequence[Tensor]) -> list[Tensor]:
    """The examples, and other numbers of images than theirs: one, and one more."""
    return [*examples, examples[0][:1], torch.cat([examples[0], examples[0][-1:].flip(-1)])]


@torch.inference_mode()
def speed_up(plain: nn.Module, fast: nn.Module, images: Float[Tensor, "b c y x"]) -> float:
    """How many times as fast, by the best of several rounds in which both take turns."""
    seconds: dict[nn.Module, list[float]] = {plain: [], fast: []}
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(seconds[fast]) < 3:
        for module, times in seconds.items():
            start = time.perf_counter()
            module(images)
            times.append(time.perf_counter() - start)
    return min(seconds[plain]) / min(seconds[fast])
