"""What is done to a model from outside, block by block: recomputation, compilation, precision."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.utils.checkpoint import checkpoint

from vitreous.machine import bf16_is_safe
from vitreous.models.base import Model


def checkpoint_blocks(model: Model) -> None:
    """Blocks keep only their input and are computed again on the way back: same gradients, less memory."""
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def compile_blocks(model: Model) -> None:
    """Blocks that look alike share their compiled code, so that this takes as long as for one."""
    for block in model.blocks:
        block.compile()


def choose_precision(wanted: str, device: str) -> tuple[str, str]:
    """The precision to compute in, and why."""
    on_gpu = device.startswith("cuda")
    if wanted == "fp32":
        return "fp32", "as asked"
    if wanted == "bf16":
        if not on_gpu and not bf16_is_safe():
            raise ValueError(
                "train.precision bf16: a product in bfloat16 ends the process on this machine (tried in a process of "
                "its own); use fp32"
            )
        return "bf16", "as asked"
    if on_gpu and torch.cuda.is_bf16_supported():
        return "bf16", "this GPU computes in it"
    return "fp32", "bf16 is unsafe on some CPUs; ask for it to have it tried" if not on_gpu else "this GPU lacks bf16"


def autocast(precision: str, device: str) -> AbstractContextManager[object]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.split(":")[0], dtype=torch.bfloat16)
