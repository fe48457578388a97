"""One process or many: who we are among them, and how a model is spread over them.

``torchrun`` says through the environment how many processes there are. Models know nothing of it: DDP wraps the whole,
FSDP2 shards every block, found through ``model.blocks``.
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

from vitreous.tasks.base import OutputsOf

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among all."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, batch_size: int) -> slice:
        """This process's rows of a global batch."""
        if batch_size % self.size:
            raise ValueError(
                f"train.batch_size {batch_size} cannot be shared by {self.size} processes; choose a multiple of them"
            )
        each = batch_size // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def anyone(self, flag: bool) -> bool:
        """True on all as soon as it is true on one."""
        if self.size == 1:
            return flag
        value = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value.item())

    def together(self, work: Callable[[], T]) -> T | None:
        """Do something on the first process while the others wait; where it is refused, all of them stop."""
        result, refusal = None, None
        if self.is_main:
            try:
                result = work()
            except ValueError as error:
                refusal = error
        refused = self.anyone(refusal is not None)
        if refusal is not None:
            raise refusal
        if refused:
            raise SystemExit(2)  # the first process says why
        return result

    def mean(self, value: Tensor) -> Tensor:
        if self.size > 1:
            value = value.detach().clone()
            dist.all_reduce(value, op=dist.ReduceOp.SUM)
            value /= self.size
        return value

    def gathered(self, value: Any) -> list[Any]:
        """Everybody's value, on all."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def agree_on_buffers(self, model: nn.Module) -> None:
        """Statistics of norms as the first process has them; DDP does so by itself, FSDP does not."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def join(device: str = "auto") -> World:
    """The world that torchrun made, or a world of one."""
    size, rank, local = (int(os.environ.get(name, default)) for name, default in ENVIRONMENT)
    chosen = choose_device(device, local)
    if size > 1 and not dist.is_initialized():
        if chosen.startswith("cuda"):
            torch.cuda.set_device(torch.device(chosen))
        backend = "nccl" if chosen.startswith("cuda") else "gloo"
        dist.init_process_group(backend, store=fresh_store(), rank=rank, world_size=size)
    return World(rank, size, chosen) if size > 1 else World(device=chosen)


ENVIRONMENT = (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"))


def fresh_store() -> Store | None:
    """Where processes find each other, apart for every restart on one node.

    There torchrun keeps its store, with the addresses of processes that are dead, and torch 2.15 tries to reach them.
    Between nodes each restart has a store of its own, and nodes need not agree on the number of restarts.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return None
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return PrefixStore(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_device(device: str, local_rank: int) -> str:
    if device != "auto":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"train.device {device!r} cannot be used here ({reason}); 'auto' chooses one") from None
        return device
    if torch.cuda.is_available():
        return f"cuda:{local_rank}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def spread(outputs: OutputsOf, world: World, kind: Literal["ddp", "fsdp"]) -> nn.Module:
    """The model as the loop calls it. FSDP2 replaces the parameters in place, so optimizers are made afterwards."""
    if world.size == 1 and kind == "ddp":
        return outputs
    if kind == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        on_gpu = world.device.startswith("cuda")
        return DistributedDataParallel(outputs, device_ids=[torch.device(world.device)] if on_gpu else None)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if world.size == 1:
        raise ValueError("train.parallel fsdp needs several processes: start with torchrun --nproc-per-node 2 …")
    mesh = init_device_mesh(world.device.split(":")[0], (world.size,))
    for block in outputs.model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(outputs, mesh=mesh)
    return outputs


def whole(value: Tensor) -> Tensor:
    """A tensor's full value, gathered from all processes when it is sharded."""
    gather = getattr(value, "full_tensor", None)
    return gather() if gather is not None else value
