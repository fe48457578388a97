"""Will it fit, how to shard it, how long will it take: a training run on many devices, from the cost formulas alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitreous.cost import BYTES, Precision, cost
from vitreous.models.base import Config
from vitreous.spec import Size

USABLE = 0.9  # of a device's memory; the rest goes to fragmentation and the libraries
FORWARD_AND_BACKWARD = 3  # a backward pass costs two forward passes
RECOMPUTED = 4  # with checkpointing the forward pass runs twice


@dataclass(frozen=True)
class Option:
    """One way to lay the run out, and how many images a device can then hold at once."""

    shards: int  # devices that share one copy of parameters, gradients and moments
    checkpointing: bool
    state_bytes: float
    bytes_per_image: float
    micro_batch: int

    @property
    def name(self) -> str:
        layout = "DDP" if self.shards == 1 else f"FSDP over {self.shards}"
        return layout + (" + checkpointing" if self.checkpointing else "")


@dataclass(frozen=True)
class Plan:
    """What was asked, what was tried, and the first option that works (None if none does)."""

    model: str
    image_size: Size
    parameters: int
    macs: int
    images: float
    devices: int
    memory: float
    flops: float
    batch: int
    precision: Precision
    utilization: float
    options: tuple[Option, ...]
    chosen: Option | None

    @property
    def per_device(self) -> int:
        return math.ceil(self.batch / self.devices)

    @property
    def accumulation(self) -> int:
        """Forward passes per step and device."""
        return math.ceil(self.per_device / min(self.per_device, self.chosen.micro_batch)) if self.chosen else 0

    @property
    def total_flops(self) -> float:
        passes = RECOMPUTED if self.chosen and self.chosen.checkpointing else FORWARD_AND_BACKWARD
        return 2.0 * passes * self.macs * self.images

    @property
    def seconds(self) -> float:
        return self.total_flops / (self.devices * self.flops * self.utilization)


def plan(
    model: str | Config,
    *,
    images: float,
    devices: int,
    memory: float,
    flops: float,
    image_size: int | Size | None = None,
    batch: int = 4096,
    precision: Precision = "bf16",
    utilization: float = 0.4,
) -> Plan:
    """A training run of ``images`` seen in all, on ``devices`` with ``memory`` bytes and ``flops`` a second each."""
    positive = {"images": images, "devices": devices, "memory": memory, "flops": flops, "batch": batch}
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    if batch < devices:
        raise ValueError(f"a batch of {batch} leaves some of the {devices} devices idle; use a larger batch")
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization must lie in (0, 1], got {utilization}")
    one = cost(model, image_size, precision=precision)
    # a sharded model still gathers one block at a time to compute with it, and the next while it does
    gathered = 2 * one.parameters / one.depth * BYTES[precision]
    options = []
    for checkpointing in (False, True):
        per_image = one.checkpointed_bytes if checkpointing else one.activation_bytes
        for shards in (2**power for power in range(devices.bit_length()) if 2**power <= devices):
            state = one.state_bytes / shards + (gathered if shards > 1 else 0)
            micro_batch = int((USABLE * memory - state) // per_image)
            options.append(Option(shards, checkpointing, state, per_image, max(0, micro_batch)))
    enough = min(8, math.ceil(batch / devices))
    chosen = next((option for option in options if option.micro_batch >= enough), None)
    chosen = chosen or next((option for option in options if option.micro_batch >= 1), None)
    return Plan(
        one.name,
        one.image_size,
        one.parameters,
        one.macs,
        images,
        devices,
        memory,
        flops,
        batch,
        precision,
        utilization,
        tuple(options),
        chosen,
    )
