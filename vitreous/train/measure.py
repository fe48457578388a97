"""The evaluation loop, for training, evaluation and laboratory alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.loader import EvaluationLoader, first_of
from vitreous.samples import Batch, Inputs
from vitreous.tasks.meter import Meter
from vitreous.train.parallel import World

Forward = Callable[[Inputs], dict[str, Tensor]]


@dataclass(frozen=True)
class Measured:
    """A set that a model was measured on: what the meter holds now, and what could not be read."""

    meter: Meter
    unreadable: dict[str, str]
    seconds: float  # that the model took, without loading


def measure(
    forward: Forward,
    loader: EvaluationLoader,
    meter: Meter,
    *,
    world: World | None = None,
    select: Callable[[Batch], Inputs] = lambda batch: batch.inputs,
    context: Callable[[], Any] = nullcontext,
    progress: Callable[[int, int], None] | None = None,
) -> Measured:
    """Show every image of the loader's set to the model once, each process its share, and merge what they measured.

    Shares are equally long and every process runs the model equally often, since processes compute together: one may
    see images again that are not counted a second time, or a blank one where nothing of a batch can be read.
    """
    world, total, seconds = world or World(), len(loader.data), 0.0
    own = np.arange(world.rank, total, world.size)
    share = np.resize(own, -(-total // world.size))
    for rows, batch in loader.part(share, skip_empty=world.size == 1):
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
    for rank, (other, failed) in enumerate(world.gathered((meter, unreadable))):
        if rank != world.rank:
            meter.merge(other)
            unreadable |= failed
    if not len(meter):
        reason = f", e.g. {first_of(unreadable)}" if unreadable else ""
        raise ValueError(f"none of the {total:,} images could be read{reason}, so there is nothing to measure")
    return Measured(meter, unreadable, seconds)
