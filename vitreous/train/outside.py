"""Activation checkpointing, compilation and mixed precision, applied to a model from outside."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.utils.checkpoint import checkpoint

from vitreous.machine import bf16_is_safe
from vitreous.models.base import Model


def checkpoint_blocks(model: Model) -> None:
    """Enable activation checkpointing: store only each block's input and recompute the block in the backward pass."""
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def compile_blocks(model: Model) -> None:
    """Compile every block in place; blocks of the same structure share compiled code."""
    for block in model.blocks:
        block.compile()


def choose_precision(wanted: str, device: str) -> tuple[str, str]:
    """Return the precision to train in, and the reason.

    Raises:
        ValueError: If bf16 is requested on a CPU where it crashes the process.
    """
    on_gpu = device.startswith("cuda")
    if wanted == "fp32":
        return "fp32", "as requested"
    if wanted == "bf16":
        if not on_gpu and not bf16_is_safe():
            raise ValueError(
                "train.precision bf16: a bfloat16 matrix product crashes this CPU (tried in a subprocess); use fp32"
            )
        return "bf16", "as requested"
    if on_gpu and torch.cuda.is_bf16_supported():
        return "bf16", "supported by this GPU"
    return (
        "fp32",
        "bf16 crashes on some CPUs; request it to have it tested" if not on_gpu else "this GPU does not support bf16",
    )


def autocast(precision: str, device: str) -> AbstractContextManager[object]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.split(":")[0], dtype=torch.bfloat16)
