"""Time of a training step by phase of the loop, and by torch operation."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity

from vitreous.train.log import RunLog
from vitreous.train.loop import Trainer
from vitreous.train.meter import RunMeter

STEPS = 3
KINDS = {  # kind → prefixes of operation names
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "attention": ("aten::_scaled_dot_product_",),
    "GELU": ("aten::gelu",),
    "layer norm": ("aten::native_layer_norm",),
    "copies": ("aten::copy_", "aten::cat"),
    "sums for biases": ("aten::sum",),
    "residual sums": ("aten::add",),
    "convolution": ("aten::mkldnn_convolution", "aten::convolution"),
    "AdamW": ("aten::_fused_adamw",),
    "clipping": ("aten::linalg_vector_norm", "aten::_foreach"),
}


def take_steps(trainer: Trainer, start: int, number: int) -> None:
    meter = RunMeter(trainer.loader.batch_size)
    with RunLog(trainer.folder, total=trainer.total, start=start, shown=True) as log:
        for step in range(start, start + number):
            trainer.step(step, trainer.loader.batch(step), meter)
            trainer.after_step(step + 1, log, meter)


def by_phase(trainer: Trainer) -> dict[str, float]:
    """Shares of a step, timed around the loop's calls; the remainder is the loss and the meter."""
    timed_calls: list[tuple[str, Any, str]] = [
        ("data and augmentation", trainer.loader, "batch"),
        ("forward", trainer, "forward"),
        ("backward", torch.Tensor, "backward"),
        ("clipping", trainer, "clip"),
        ("logging", trainer, "after_step"),
        *(("optimizer", optimizer, "step") for optimizer in trainer.optimizers),
        *([("average of the weights", trainer.ema, "update")] if trainer.ema else []),
    ]
    seconds: dict[str, float] = defaultdict(float)

    def timed(phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments, **options)
            seconds[phase] += time.perf_counter() - start
            return result

        return run

    take_steps(trainer, 0, 1)
    with ExitStack() as patches:
        for phase, owner, name in timed_calls:
            patches.enter_context(patch.object(owner, name, timed(phase, getattr(owner, name))))
        timed("all", take_steps)(trainer, 1, STEPS)
    total = seconds.pop("all")
    shares = {phase: duration / total for phase, duration in seconds.items()}
    return descending(shares | {"loss and the rest": 1 - sum(shares.values())})


def by_operation(trainer: Trainer) -> dict[str, float]:
    """Shares of the time inside torch operations, by kind."""
    take_steps(trainer, 0, 1)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        take_steps(trainer, 1, STEPS)
    seconds: dict[str, float] = defaultdict(float)
    for event in profile.key_averages():
        seconds[kind_of(event.key)] += event.self_cpu_time_total
    return descending({kind: duration / sum(seconds.values()) for kind, duration in seconds.items()})


def kind_of(operation: str) -> str:
    return next((kind for kind, starts in KINDS.items() if operation.startswith(starts)), "everything else")


def descending(shares: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def table(title: str, shares: Mapping[str, float]) -> str:
    width = max(map(len, shares))
    return "\n".join([title, *(f"  {name:<{width}}  {share:6.1%}" for name, share in shares.items())])
