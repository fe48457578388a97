"""Record attention weights, logits, queries, keys, values, head outputs and token norms of a forward pass.

Fused kernels never materialize the attention weights. Inside ``with record(model)``, every attention op (see
``layers/attention.py``) is replaced by a module that computes the same output through explicit weights and stores them.
A recording belongs to the thread or asyncio task that opened it: others may run the same model at the same time on the
fast path, or record it into a separate trace. Other models are not affected.
"""

from __future__ import annotations

import fnmatch
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar, cast, get_args

import torch
from torch import nn

from vitreous.explain.recorder import (
    ATTENTION_TENSORS,
    NoAttention,
    Recorder,
    Recording,
    Reduce,
    What,
    active_recording,
    record_input,
    record_output,
)
from vitreous.explain.trace import Trace
from vitreous.layers.attention import AttentionOp
from vitreous.models.base import Model
from vitreous.options import check_callable, checked_texts, did_you_mean

#: Reductions by name; each is applied as soon as a layer has run, so that only the result stays in memory.
REDUCTIONS: dict[str, Reduce] = {
    "mean_heads": partial(torch.mean, dim=1, keepdim=True),
    "max_heads": partial(torch.amax, dim=1, keepdim=True),
}


@contextmanager
def record(
    model: Model,
    layers: Sequence[str] | str | None = None,
    *,
    what: What | Sequence[What] = "weights",
    reduce: str | Reduce | None = None,
    gradients: bool = False,
) -> Iterator[Trace]:
    """Record the attention of a model's forward passes inside a ``with`` block.

    Attention weights take b·h·n² elements per layer: select layers or pass ``reduce`` to limit memory, and use
    ``torch.no_grad()`` for large models, since autograd would hold the full weights. Each forward pass replaces the
    recording of the previous one.

    Example::

        with vt.record(model) as trace:
            model(images)
        trace["blocks.3"].weights  # (b, h, n, n)
        trace.rollout()  # (b, y, x)

    Args:
        model: A Vitreous model. Of a compiled or accelerated wrapper the inner model is recorded, with a warning:
            call ``trace.model`` in its place.
        layers: Names or patterns of the layers to record, such as "blocks.3" or "blocks.1?". Default: all.
        what: One or several of "weights", "logits", "q", "k", "v" and "output" (per head, before the output
            projection), recorded per attention, and "stream" (output tokens) and "norms" (their L2 norms), recorded
            per block.
        reduce: "mean_heads", "max_heads", or a function of the weights whose result is stored instead of them.
        gradients: Also store the gradient of the weights, available after ``backward()`` as
            ``trace["blocks.3"].gradient``.

    Yields:
        The :class:`Trace`, which is filled by each forward pass and remains valid after the block.

    Raises:
        ValueError: If the options contradict each other, no layer matches, the model has no attention
            (:class:`NoAttention`), or the current thread or task already records this model.
    """
    wanted = check_what(what)
    if gradients and "weights" not in wanted:
        raise ValueError("gradients are those of the weights: include 'weights' in what")
    model = unwrap_model(model)
    ops = select_layers(find_attention_ops(model), layers) if wanted & set(ATTENTION_TENSORS) else {}
    blocks = select_layers(dict(named_blocks(model)), layers) if wanted & {"stream", "norms"} else {}
    recording = Recording(
        Trace(model, list(ops)),
        what=wanted,
        reduce=check_reduce(reduce, gradients=gradients),
        gradients=gradients,
        ops={op: name for name, (_, _, op) in ops.items()},
        blocks={block: name for name, block in blocks.items()},
        input_modules=modules_outside_blocks(model),
    )
    recording.open()
    try:
        with installed(ops.values(), recording):
            yield recording.trace
    finally:
        recording.close()


def check_what(what: What | Sequence[What]) -> set[What]:
    wanted = set(checked_texts("what", what))
    for name in sorted(wanted):
        if name not in get_args(What):
            choices = ", ".join(get_args(What))
            raise ValueError(f"what must be among {choices}; got {name!r}{did_you_mean(name, get_args(What))}")
    return cast(set[What], wanted)


def check_reduce(reduce: str | Reduce | None, *, gradients: bool) -> Reduce | None:
    if gradients and reduce is not None:
        raise ValueError("gradients need the weights of every head; omit reduce, and select layers to save memory")
    if isinstance(reduce, str):
        if reduce not in REDUCTIONS:
            raise ValueError(f"there is no reduction {reduce!r}{did_you_mean(reduce, REDUCTIONS)}")
        return REDUCTIONS[reduce]
    check_callable("reduce", reduce)
    return reduce


def unwrap_model(model: nn.Module) -> Model:
    """Return the model, or the one inside a compiled or accelerated wrapper, with a warning to call that one."""
    if isinstance(model, Model):
        return model
    for attribute in ("model", "_orig_mod"):
        inner = getattr(model, attribute, None)
        if isinstance(inner, Model):
            warnings.warn(
                f"a {type(model).__name__} cannot be recorded; call trace.model, the wrapped model, which is recorded",
                stacklevel=4,
            )
            return inner
    raise ValueError(f"record needs a Vitreous model, got {type(model).__name__}")


def modules_outside_blocks(model: Model) -> set[nn.Module]:
    """The modules outside the blocks, one of which is the first to receive the images."""
    inside = {module for block in model.blocks for module in block.modules()}
    return set(model.modules()) - inside - {model}


#: Held while recorders are installed or removed: several threads may start to record one model at the same time.
INSTALL_LOCK = threading.Lock()


@contextmanager
def installed(refs: Iterable[OpRef], recording: Recording) -> Iterator[None]:
    """Install recorders and hooks on the modules of a recording, and remove them on exit."""
    with ExitStack() as stack:
        with INSTALL_LOCK:
            for owner, attribute, _ in refs:
                stack.callback(remove_recorder, owner, attribute, install_recorder(owner, attribute))
            for module in recording.input_modules:
                stack.callback(module.register_forward_pre_hook(record_input).remove)
            for block in recording.blocks:
                stack.callback(block.register_forward_hook(record_output).remove)
        yield


def install_recorder(owner: nn.Module, attribute: str) -> Recorder:
    """Replace an attention op by a recorder, or share the recorder that another thread installed."""
    present = getattr(owner, attribute)
    if isinstance(present, Recorder):
        present.users += 1
        return present
    recorder = Recorder(present)
    setattr(owner, attribute, recorder)
    return recorder


def remove_recorder(owner: nn.Module, attribute: str, recorder: Recorder) -> None:
    with INSTALL_LOCK:
        recorder.users -= 1
        if not recorder.users and getattr(owner, attribute) is recorder:
            setattr(owner, attribute, recorder.op)


OpRef = tuple[nn.Module, str, AttentionOp]  # parent module, attribute name, op


def named_blocks(model: Model) -> Iterator[tuple[str, nn.Module]]:
    for index, block in enumerate(model.blocks):
        yield f"blocks.{index}", block


def find_attention_ops(model: Model) -> dict[str, OpRef]:
    """Find all attention ops, named after their block, and with their path where a block has several."""
    ops: dict[str, OpRef] = {}
    owners: set[nn.Module] = set()
    for name, block in named_blocks(model):
        found = []
        for path, owner in block.named_modules():
            if owner in owners or isinstance(owner, Recorder):
                continue  # a block that is used several times is one block
            owners.add(owner)
            for attribute, child in owner.named_children():
                op = child.op if isinstance(child, Recorder) else child  # installed by another thread
                if active_recording(op) is not None:
                    raise ValueError("this model is already being recorded; use the trace of the outer with block")
                if isinstance(op, AttentionOp):
                    found.append((f"{path}.{attribute}".removesuffix(".attend"), (owner, attribute, op)))
        for path, ref in found:
            ops[name if len(found) == 1 else f"{name}.{path}"] = ref
    if not ops:
        raise NoAttention(
            f"{type(model).__name__} has no attention to record; what='stream' and what='norms' are available"
        )
    return ops


T = TypeVar("T")


def select_layers(found: dict[str, T], layers: Sequence[str] | str | None) -> dict[str, T]:
    """Select by patterns, matched against layer and block names; each pattern must match something."""
    if layers is None:
        return found
    patterns = checked_texts("layers", layers)
    if not patterns:
        raise ValueError("layers is empty; omit it to record all layers")
    blocks = {name: ".".join(name.split(".")[:2]) for name in found}
    for pattern in patterns:
        if not fnmatch.filter([*blocks, *blocks.values()], pattern):
            raise ValueError(f"there is no layer {pattern!r}{did_you_mean(pattern, found)}")
    chosen = {word for pattern in patterns for word in fnmatch.filter([*blocks, *blocks.values()], pattern)}
    return {name: item for name, item in found.items() if {name, blocks[name]} & chosen}
