"""Count the floating-point operations and the live memory of a computation."""

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
    """Return k of y ∝ xᵏ, given that scaling x by ``factor`` changes y from ``before`` to ``after``."""
    return math.log(after / before) / math.log(factor)


def forward_flops(module: nn.Module, *inputs: Any, part: str = "") -> int:
    """Count the FLOPs of a call with torch's counter, of the whole module or of a ``part`` such as "blocks.0.mixer"."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    if not part:
        return counter.get_total_flops()
    return sum(counter.get_flop_counts()[f"{type(module).__name__}.{part}"].values())


def counted_macs(name: str, image_size: int, **overrides: Any) -> dict[str, int]:
    """Count the MACs of every module of a model for one image, by module path; "" is the whole model."""
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
    """Count the FLOPs of a forward pass and of the backward pass from the sum of its output."""
    with FlopCounterMode(display=False) as counter:
        run().sum().backward()
    return counter.get_total_flops()


class Memory(TorchDispatchMode):
    """Track the bytes of live tensors created inside the context: ``now`` and ``peak``.

    Tensors passed as ``given``, such as parameters and their gradients, are not counted, nor is the temporary workspace
    of kernels.
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
