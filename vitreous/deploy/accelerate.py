"""The fastest safe way to run a model on the machine at hand.

>>> fast = vt.accelerate(model, images)
>>> fast(images)                     # the logits, sooner
>>> print(fast.report)               # what was chosen, why, its error and its speed
>>> fast.model                       # the model itself, untouched: record, train and save that one
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
from vitreous.deploy.engine import Tell, sharing_copy
from vitreous.deploy.native.convert import Choice
from vitreous.deploy.race import WAYS, EngineName, Job, Precision, Tried, attempt, check
from vitreous.files import digest, write_atomically
from vitreous.models.base import Model
from vitreous.options import check_callable, checked_texts, did_you_mean
from vitreous.samples import Inputs
from vitreous.spec import Spec

Way = tuple[EngineName, Precision]
Example = Float[Tensor, "b c y x"] | Sequence[Float[Tensor, "b c y x"]]

#: Ways that take long to prepare are only tried while no other is this many times as fast as the plain model.
ENOUGH = 1.25
SLOW_TO_PREPARE = ("inductor", "onnxruntime")


@dataclass(frozen=True)
class Report:
    """What was chosen and why; ``tried`` holds every way that was considered."""

    chosen: Tried
    tried: tuple[Tried, ...]
    batch: int
    threads: int
    remembered: bool
    tolerance: float

    @property
    def engine(self) -> EngineName:
        return self.chosen.engine

    @property
    def precision(self) -> Precision:
        return self.chosen.precision

    @property
    def error(self) -> float:
        """Of the logits, relative to their length, on the examples."""
        return self.chosen.error

    @property
    def speed_up(self) -> float:
        """Against the plain model, on the first example."""
        return self.chosen.speed_up

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(f"{tried.engine}, {tried.precision}: {tried.reason}" for tried in self.tried if tried.reason)

    def __str__(self) -> str:
        how = "as found before" if self.remembered else "the fastest that was right"
        head = f"{self.engine}, {self.precision}: {self.speed_up:.2f} × the plain model ({how}; "
        head += f"batch {self.batch}, {self.threads} threads), relative error {self.error:.1e}"
        return "\n".join([head, *(line(tried, tried is self.chosen) for tried in self.tried)])


def line(tried: Tried, chosen: bool) -> str:
    numbers = f"{tried.speed_up:6.2f} ×  error {tried.error:.1e}" if tried.module is not None else f"{'out':>22}"
    return f"{'→' if chosen else ' '} {tried.engine:<12}{tried.precision:<6}{numbers}  {tried.reason}".rstrip()


class Accelerated(nn.Module):
    """Images in, logits out, without gradients; ``model`` is the original.

    It holds copies of some weights and shares others: after training ``model`` further, accelerate it again.
    """

    def __init__(self, model: Model, report: Report) -> None:
        super().__init__()
        self.report = report
        self._fast = (report.chosen.module,)
        self._model = (model,)  # in tuples, so that neither is a part of this module: it has no weights of its own

    @property
    def model(self) -> Model:
        return self._model[0]

    @property
    def spec(self) -> Spec:
        return self.model.spec

    def outputs(self, inputs: Inputs) -> dict[str, Tensor]:
        """What ``model.outputs`` gives, sooner; several heads come averaged."""
        found = self(inputs.images)
        return found if isinstance(found, dict) else {self.model.main_output: found}

    @torch.inference_mode()
    def forward(self, images: Float[Tensor, "b c y x"]) -> Any:
        self.model.check_images(images, smallest=(1, 1))
        fast = self._fast[0]
        assert fast is not None
        return fast(images)

    def likewise(self, model: Model, example: Example) -> Accelerated:
        """Accelerate another model in the way that was chosen for this one, or leave it as it is."""
        report = self.report
        return accelerate(model, example, report.precision, engines=[report.engine], tolerance=report.tolerance)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("an accelerated model cannot be copied or pickled; take its .model, and accelerate that again")

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
    tell: Tell | None = None,
) -> Accelerated:
    """Try what this machine offers, and keep what is fastest with logits within ``tolerance`` of the model's.

    ``example`` is a batch of real images of the size and number you will use, or several batches of other sizes: the
    error is measured with them. ``tolerance`` is relative to the length of the logits; in float32 it is 1e-4.
    ``precision`` narrows the search. ``engines`` names those to try; by itself Inductor and ONNX Runtime, which take
    long to prepare, are left out where a quicker one is fast enough already. With ``static`` the ranges of int8
    activations are fixed by the example instead of being found for every token. The choice is remembered for this
    model, machine and versions; ``fresh`` forgets it. ``tell`` hears of progress.
    """
    examples = check_examples(model, example)
    ways = check_ways(precision, get_args(EngineName) if engines is None else checked_texts("engines", engines))
    if not isinstance(tolerance, int | float) or not tolerance > 0:
        raise ValueError(f"tolerance must be above 0, got {tolerance!r}")
    check_callable("tell", tell)
    plain = sharing_copy(model).eval()
    with telling(tell) as heard:
        job = Job(plain, examples, tolerance, static, tell=heard)
        return Accelerated(model, decide(job, ways, fresh=fresh, thorough=engines is not None))


def decide(job: Job, ways: list[Way], *, fresh: bool, thorough: bool) -> Report:
    memory = machine.cache_folder() / f"choice-{identity(job, ways)}.json"
    batch, threads = len(job.examples[0]), torch.get_num_threads()
    if not fresh and (known := recall(memory, job)) is not None:
        return Report(known, (known,), batch, threads, remembered=True, tolerance=job.tolerance)
    tried = race(job, ways, enough=math.inf if thorough else ENOUGH)
    if not any(one.module for one in tried):
        plain = Tried("eager", "fp32", job.model, reason="the plain model: nothing else is close enough", error=0.0)
        tried.append(replace(plain, speed_up=1.0))
    chosen = max((one for one in tried if one.module), key=lambda one: one.speed_up)
    choice = {
        "engine": chosen.engine,
        "precision": chosen.precision,
        "speed_up": chosen.speed_up,
        "choice": asdict(chosen.choice) if chosen.choice else None,
    }
    with contextlib.suppress(OSError):
        write_atomically(memory, json.dumps(choice, indent=1).encode())
    machine.forget_unused()
    return Report(chosen, tuple(tried), batch, threads, remembered=False, tolerance=job.tolerance)


def race(job: Job, ways: list[Way], enough: float) -> list[Tried]:
    """Every way, but those that are slow to prepare only as long as none is fast enough."""
    tried: list[Tried] = []
    for way in ways:
        if way[0] in SLOW_TO_PREPARE and any(one.module and one.speed_up >= enough for one in tried):
            tried.append(Tried(*way, reason="not tried: another way is fast enough"))
        else:
            tried.append(attempt(job, way))
    return tried


def recall(memory: Path, job: Job) -> Tried | None:
    """The way that was chosen before, if it still works and is still right; its speed is the one measured then."""
    try:
        kept = json.loads(memory.read_text())
        way, speed_up = (kept["engine"], kept["precision"]), float(kept["speed_up"])
        choice = Choice(**kept["choice"]) if kept["choice"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if way not in WAYS:
        return None
    machine.used(memory)
    few = job.examples if job.static else [images[:2] for images in job.examples]  # static ranges come from all of them
    tried = check(replace(job, examples=few, choice=choice), way)
    return replace(tried, speed_up=speed_up) if tried.module is not None else None


def identity(job: Job, ways: list[Way]) -> str:
    """Of everything that a choice may depend on, except the weights: those are checked again at every start."""
    versions = vitreous.__version__, torch.__version__, torch.get_num_threads()
    here = machine.cpu_name(), sorted(machine.cpu_flags()), machine.c_compiler()
    shapes = [tuple(images.shape) for images in job.examples]
    words = repr((job.model.config, job.model.edits, shapes, job.tolerance, job.static, ways, here, versions))
    return digest(words)[:16]


def check_examples(model: Model, example: Example) -> list[Tensor]:
    if not isinstance(model, Model):
        raise ValueError(f"accelerate needs a Vitreous model, got {type(model).__name__}")
    if {parameter.device.type for parameter in model.parameters()} != {"cpu"}:
        raise ValueError("accelerate is for CPUs; move the model with model.cpu()")
    examples: list[Any] = list(example) if isinstance(example, list | tuple) else [example]
    if not all(isinstance(images, Tensor) for images in examples):
        got = type(example).__name__
        raise ValueError(f"example must be a batch of images as a tensor, or a list of batches; got {got}")
    if not examples:
        raise ValueError("accelerate needs a batch of images to compare speed and answers with")
    for images in examples:
        model.check_images(images, smallest=(1, 1))
        if len(images) == 0:
            raise ValueError("the example is an empty batch; give at least one image")
    return examples


def check_ways(precision: str, engines: Sequence[str]) -> list[Way]:
    known = ("auto", *get_args(Precision))
    if precision not in known:
        raise ValueError(
            f"precision must be one of {', '.join(known)}, got {precision!r}{did_you_mean(precision, known)}"
        )
    for engine in engines:
        if engine not in get_args(EngineName):
            raise ValueError(f"unknown engine {engine!r}{did_you_mean(engine, get_args(EngineName))}")
    ways = [way for way in WAYS if way[0] in engines and precision in ("auto", way[1])]
    if not ways:
        raise ValueError(f"none of the engines {', '.join(engines)} runs in {precision}")
    return ways


@contextlib.contextmanager
def telling(tell: Tell | None) -> Iterator[Tell]:
    """The caller's own, or a line that changes in the terminal, if there is one."""
    if tell is not None or not sys.stderr.isatty():
        yield tell or (lambda words: None)
        return
    from rich.console import Console

    with Console(stderr=True).status("Looking for the fastest way") as status:
        yield lambda words: status.update(f"Looking for the fastest way: {words}")
