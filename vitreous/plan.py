"""Plan a training run on many devices from cost formulas: memory, sharding, micro-batch size and duration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitreous.cost import BYTES, Precision, cost
from vitreous.models.base import Config
from vitreous.spec import Size

USABLE = 0.9  # share of a device's memory; the rest is left for fragmentation and libraries
FORWARD_AND_BACKWARD = 3  # in forward passes: a backward pass costs two
RECOMPUTED = 4  # with activation checkpointing, which repeats the forward pass


@dataclass(frozen=True)
class PlanOption:
    """A parallel layout, with the memory it needs and the largest micro-batch that fits."""

    shards: int  # devices that share one copy of parameters, gradients and optimizer state
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
    """The requested run, the layouts considered, and the first that fits (None if none does)."""

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
    options: tuple[PlanOption, ...]
    chosen: PlanOption | None

    @property
    def per_device(self) -> int:
        return math.ceil(self.batch / self.devices)

    @property
    def accumulation(self) -> int:
        """Gradient accumulation: micro-batches per step and device; 0 if nothing fits."""
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
    """Plan a training run.

    Args:
        model: Name or config of the model.
        images: Number of training images in total, i.e. dataset size times epochs.
        devices: Number of devices.
        memory: Memory of each device in bytes.
        flops: Peak FLOP/s of each device.
        image_size: Image size; by default the model's.
        batch: Global batch size.
        precision: Compute precision.
        utilization: Expected model FLOPs utilization (MFU).

    Returns:
        All layouts from DDP to FSDP over all devices, with and without activation checkpointing, and the chosen one.

    >>> plan("vit_base_16", images=300 * 1.28e6, devices=8, memory=80e9, flops=312e12).seconds
    """
    positive = {"images": images, "devices": devices, "memory": memory, "flops": flops, "batch": batch}
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    if batch < devices:
        raise ValueError(f"a batch of {batch} leaves some of the {devices} devices idle; use a larger batch")
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization must lie in (0, 1], got {utilization}")
    one = cost(model, image_size, precision=precision)
    # FSDP gathers the parameters of the current block and prefetches those of the next
    gathered = 2 * one.parameters / one.depth * BYTES[precision]
    options = []
    for checkpointing in (False, True):
        per_image = one.checkpointed_bytes if checkpointing else one.activation_bytes
        for shards in (2**power for power in range(devices.bit_length()) if 2**power <= devices):
            state = one.state_bytes / shards + (gathered if shards > 1 else 0)
            micro_batch = int((USABLE * memory - state) // per_image)
            options.append(PlanOption(shards, checkpointing, state, per_image, max(0, micro_batch)))
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
