"""The evaluation loop, shared by training, ``vt.evaluate`` and the lab."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.loader import EvaluationLoader, first_unreadable
from vitreous.samples import Batch, Inputs
from vitreous.tasks.meter import Meter
from vitreous.train.parallel import World

Forward = Callable[[Inputs], dict[str, Tensor]]


@dataclass(frozen=True)
class EvaluationResult:
    """A filled meter, the images that could not be read, and the inference time."""

    meter: Meter
    unreadable: dict[str, str]  # image → reason
    seconds: float  # of the forward passes, without data loading


def measure(
    forward: Forward,
    loader: EvaluationLoader,
    meter: Meter,
    *,
    world: World | None = None,
    select: Callable[[Batch], Inputs] = lambda batch: batch.inputs,
    context: Callable[[], Any] = nullcontext,
    progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Evaluate a model on every image of the loader's dataset, sharded over the processes, and merge their meters.

    Shards are padded to equal length, since FSDP needs the same number of forward passes on every process: repeated
    images are not counted, and a batch without any readable image is replaced by a blank image.

    Args:
        select: Extracts the model's inputs from a batch.
        context: Makes the context manager for each forward pass, such as autocast.
        progress: Called with the number of images done and in total.

    Raises:
        ValueError: If none of the images can be read.
    """
    world, total, seconds = world or World(), len(loader.data), 0.0
    own = np.arange(world.rank, total, world.size)
    share = np.resize(own, -(-total // world.size))
    for rows, batch in loader.batches(share, skip_empty=world.size == 1):
        begin = time.perf_counter()
        with torch.no_grad(), context():
            outputs = forward(select(batch.to(world.device)))
        seconds += time.perf_counter() - begin
        counted = int((rows < len(own)).sum())
        if counted:
            outputs = {name: value[:counted].float().cpu() for name, value in outputs.items()}
            meter.add(outputs, batch.take(slice(counted)), share[rows[:counted]])
        if progress is not None and len(rows):
            progress(int(rows[-1]) + 1, len(share))
    unreadable = dict(loader.unreadable)
    for rank, (other, failed) in enumerate(world.all_gather((meter, unreadable))):
        if rank != world.rank:
            meter.merge(other)
            unreadable |= failed
    if not len(meter):
        reason = f", e.g. {first_unreadable(unreadable)}" if unreadable else ""
        raise ValueError(f"none of the {total:,} images could be read{reason}; nothing to evaluate")
    return EvaluationResult(meter, unreadable, seconds)
