"""Data parallelism over the processes of ``torchrun``: process group, collectives, DDP and FSDP2.

Rank and world size come from the environment variables that torchrun sets. Models contain no distributed code: DDP
wraps the whole model, FSDP2 shards each of ``model.blocks``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from vitreous.tasks.base import OutputsModule

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Rank, world size and device of this process, with the collectives that training needs."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def local_rows(self, batch_size: int) -> slice:
        """Return the rows of a global batch that belong to this process."""
        if batch_size % self.size:
            raise ValueError(
                f"train.batch_size {batch_size} is not divisible by {self.size} processes; choose a multiple"
            )
        local_size = batch_size // self.size
        return slice(self.rank * local_size, (self.rank + 1) * local_size)

    def any_rank(self, flag: bool) -> bool:
        """Return whether ``flag`` is true on any rank, the same on all."""
        if self.size == 1:
            return flag
        value = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value.item())

    def run_on_main(self, work: Callable[[], T]) -> T | None:
        """Run ``work`` on rank 0 while the others wait; if it raises ValueError, stop all ranks.

        Returns the result on rank 0 and None elsewhere.
        """
        result, refusal = None, None
        if self.is_main:
            try:
                result = work()
            except ValueError as error:
                refusal = error
        refused = self.any_rank(refusal is not None)
        if refusal is not None:
            raise refusal
        if refused:
            raise SystemExit(2)  # rank 0 reports the error
        return result

    def all_reduce_mean(self, value: Tensor) -> Tensor:
        """Average a tensor over all ranks."""
        if self.size > 1:
            value = value.detach().clone()
            dist.all_reduce(value, op=dist.ReduceOp.SUM)
            value /= self.size
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """Return the picklable values of all ranks, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copy buffers, such as batch-norm statistics, from rank 0 to all; DDP does this itself, FSDP does not."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def init_process_group(device: str = "auto") -> World:
    """Join torchrun's process group, if there is one, and return this process's rank, world size and device."""
    size, rank, local = (int(os.environ.get(name, default)) for name, default in ENVIRONMENT)
    chosen = choose_device(device, local)
    if size > 1 and not dist.is_initialized():
        if chosen.startswith("cuda"):
            torch.cuda.set_device(torch.device(chosen))
        backend = "nccl" if chosen.startswith("cuda") else "gloo"
        dist.init_process_group(backend, store=restart_store(), rank=rank, world_size=size)
    return World(rank, size, chosen) if size > 1 else World(device=chosen)


ENVIRONMENT = (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"))


def restart_store() -> Store | None:
    """Return a rendezvous store with a separate key prefix per restart, or None to use torch's default.

    On a single node torchrun keeps its store across restarts, including the addresses of dead processes, to which torch
    2.15 would try to connect. With several nodes each restart has a new store, and restart counts may differ by node.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return None
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return PrefixStore(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)


def destroy_process_group() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_device(device: str, local_rank: int) -> str:
    """Check the requested device, or for "auto" choose CUDA, MPS or the CPU, in this order."""
    if device != "auto":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"train.device {device!r} is not available ({reason}); use 'auto' to choose one") from None
        return device
    if torch.cuda.is_available():
        return f"cuda:{local_rank}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def parallelize(outputs: OutputsModule, world: World, kind: Literal["ddp", "fsdp"]) -> nn.Module:
    """Wrap a model with DDP, or shard it in place with FSDP2; create optimizers afterwards."""
    if world.size == 1 and kind == "ddp":
        return outputs
    if kind == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        on_gpu = world.device.startswith("cuda")
        return DistributedDataParallel(outputs, device_ids=[torch.device(world.device)] if on_gpu else None)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if world.size == 1:
        raise ValueError("train.parallel fsdp needs several processes; launch with torchrun --nproc-per-node 2 …")
    mesh = init_device_mesh(world.device.split(":")[0], (world.size,))
    for block in outputs.model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(outputs, mesh=mesh)
    return outputs


def gather_full(value: Tensor) -> Tensor:
    """Gather a sharded tensor (DTensor) from all ranks; return any other tensor unchanged."""
    gather = getattr(value, "full_tensor", None)
    return gather() if gather is not None else value
