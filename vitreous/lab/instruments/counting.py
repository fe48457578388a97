"""Counting what a computation really does: its floating-point operations, and the memory that is alive meanwhile."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from vitreous.models import create_model


def power(factor: float, before: float, after: float) -> float:
    """k of y ∝ xᵏ, where ``factor`` times the x takes y from ``before`` to ``after``."""
    return math.log(after / before) / math.log(factor)


def forward_flops(module: nn.Module, *inputs: Any, part: str = "") -> int:
    """Of one call, as torch counts its products; ``part`` names a module inside, as in "blocks.0.mixer"."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    if not part:
        return counter.get_total_flops()
    return sum(counter.get_flop_counts()[f"{type(module).__name__}.{part}"].values())


def counted_macs(name: str, image_size: int, **overrides: Any) -> dict[str, int]:
    """Half the FLOPs of every module of a model (by its path; "" is the whole) in one forward pass of one image."""
    with torch.device("meta"):
        model = create_model(name, image_size=image_size, **overrides)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, image_size, image_size))
    root = type(model).__name__
    return {
        path.removeprefix(root).removeprefix("."): sum(operations.values()) // 2
        for path, operations in counter.get_flop_counts().items()
        if path != "Global"
    }


def training_flops(run: Callable[[], Tensor]) -> int:
    """Of a forward pass and of the backward pass from the sum of what it gives."""
    with FlopCounterMode(display=False) as counter:
        run().sum().backward()
    return counter.get_total_flops()


class Memory(TorchDispatchMode):
    """Bytes of all tensors that were made inside and are still alive: ``now``, and the most there ever were, ``peak``.

    What is given at the start, such as parameters and their gradients, is not counted. Nor is what a kernel borrows and
    gives back before it ends.
    """

    def __init__(self, given: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.given = [tensor.untyped_storage() for tensor in given]
        self.known: dict[int, weakref.ref[UntypedStorage] | None] = {storage._cdata: None for storage in self.given}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.watch(tensor.untyped_storage())
        return out

    def watch(self, storage: UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address not in self.known:
            self.known[address] = weakref.ref(storage, lambda _: self.forget(address, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def forget(self, address: int, size: int) -> None:
        self.now -= size
        del self.known[address]
