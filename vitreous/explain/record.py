"""Attention as it really was.

Fused kernels never hold the attention weights. Inside ``with record(model)``, and only there, every seam (see
``layers/attention.py``) is replaced by a module that computes the same output through explicit weights and keeps them.
Only the thread or task that opened the recording is recorded: others may use the same model meanwhile, by the fast
path, or record it too, each with a trace of its own. Other models are not touched.
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
    OF_ATTENTION,
    NoAttention,
    Recorder,
    Recording,
    Reduce,
    What,
    recording_of,
    see_input,
    see_output,
)
from vitreous.explain.trace import Trace
from vitreous.layers.attention import Seam
from vitreous.models.base import Model
from vitreous.options import check_callable, checked_texts, did_you_mean

#: Reductions by name, each applied as soon as a layer has run, so that only its result is held.
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
    """Record the attention of every layer, or of those that match ``layers`` ("blocks.3", "blocks.1?").

    ``what`` names one or several of "weights", "logits", "q", "k", "v" and "output", which every attention has (the
    output is that of each head, before the projection), and "stream" and "norms", what comes out of every block and
    the length of its tokens.

    Weights take b·h·n² numbers a layer: choose layers, or give ``reduce`` ("mean_heads", "max_heads" or a function of
    the weights) to hold only what you need. A second forward pass replaces what the first one left. While gradients
    are recorded autograd holds the full weights all the same: use ``torch.no_grad()`` to look at large models.
    With ``gradients`` the weights' gradients are there after ``backward()``: ``trace["blocks.3"].gradient``.
    """
    wanted = check_what(what)
    if gradients and "weights" not in wanted:
        raise ValueError("gradients are those of the weights: leave 'weights' among what is recorded")
    model = plain(model)
    seams = choose(find_seams(model), layers) if wanted & set(OF_ATTENTION) else {}
    blocks = choose(dict(named_blocks(model)), layers) if wanted & {"stream", "norms"} else {}
    recording = Recording(
        Trace(model, list(seams)),
        what=wanted,
        reduce=check_reduce(reduce, gradients=gradients),
        gradients=gradients,
        seams={seam: name for name, (_, _, seam) in seams.items()},
        blocks={block: name for name, block in blocks.items()},
        parts=entrances(model),
    )
    recording.open()
    try:
        with installed(seams.values(), recording):
            yield recording.trace
    finally:
        recording.close()


def check_what(what: What | Sequence[What]) -> set[What]:
    wanted = set(checked_texts("what", what))
    for name in sorted(wanted):
        if name not in get_args(What):
            choices = ", ".join(get_args(What))
            raise ValueError(f"what must be of {choices}; got {name!r}{did_you_mean(name, get_args(What))}")
    return cast(set[What], wanted)


def check_reduce(reduce: str | Reduce | None, *, gradients: bool) -> Reduce | None:
    if gradients and reduce is not None:
        raise ValueError("gradients need the weights of every head; leave reduce out, and choose layers to save memory")
    if isinstance(reduce, str):
        if reduce not in REDUCTIONS:
            raise ValueError(f"there is no reduction {reduce!r}{did_you_mean(reduce, REDUCTIONS)}")
        return REDUCTIONS[reduce]
    check_callable("reduce", reduce)
    return reduce


def plain(model: nn.Module) -> Model:
    """The model itself, or the one inside a compiled or accelerated wrapper, which must be called in its stead."""
    if isinstance(model, Model):
        return model
    for attribute in ("model", "_orig_mod"):
        inner = getattr(model, attribute, None)
        if isinstance(inner, Model):
            warnings.warn(
                f"a {type(model).__name__} cannot be looked into; call trace.model, the plain model that is recorded",
                stacklevel=4,
            )
            return inner
    raise ValueError(f"record needs a Vitreous model, got {type(model).__name__}")


def entrances(model: Model) -> set[nn.Module]:
    """The parts that may be the first to be given the images: those outside the blocks."""
    inside = {part for block in model.blocks for part in block.modules()}
    return set(model.modules()) - inside - {model}


#: Held while modules change: several threads may begin to record one model at the same time.
CHANGING = threading.Lock()


@contextmanager
def installed(places: Iterable[Place], recording: Recording) -> Iterator[None]:
    """Hang stand-ins and hooks on the modules of a recording; behind the with block all of them are gone."""
    with ExitStack() as stack:
        with CHANGING:
            for owner, attribute, _ in places:
                stack.callback(take_out, owner, attribute, put_in(owner, attribute))
            for part in recording.parts:
                stack.callback(part.register_forward_pre_hook(see_input).remove)
            for block in recording.blocks:
                stack.callback(block.register_forward_hook(see_output).remove)
        yield


def put_in(owner: nn.Module, attribute: str) -> Recorder:
    """Put a recorder in the place of a seam, or share the one that another thread has put there."""
    present = getattr(owner, attribute)
    if isinstance(present, Recorder):
        present.users += 1
        return present
    recorder = Recorder(present)
    setattr(owner, attribute, recorder)
    return recorder


def take_out(owner: nn.Module, attribute: str, recorder: Recorder) -> None:
    with CHANGING:
        recorder.users -= 1
        if not recorder.users and getattr(owner, attribute) is recorder:
            setattr(owner, attribute, recorder.seam)


Place = tuple[nn.Module, str, Seam]


def named_blocks(model: Model) -> Iterator[tuple[str, nn.Module]]:
    for index, block in enumerate(model.blocks):
        yield f"blocks.{index}", block


def find_seams(model: Model) -> dict[str, Place]:
    """Every seam with its owner, named by its block, and by its path too when the block has several."""
    seams: dict[str, Place] = {}
    owners: set[nn.Module] = set()
    for name, block in named_blocks(model):
        found = []
        for path, owner in block.named_modules():
            if owner in owners or isinstance(owner, Recorder):
                continue  # a block that stands in several places is one block
            owners.add(owner)
            for attribute, child in owner.named_children():
                seam = child.seam if isinstance(child, Recorder) else child  # that of another thread
                if recording_of(seam) is not None:
                    raise ValueError("this model is being recorded already; use the trace of the outer with block")
                if isinstance(seam, Seam):
                    found.append((f"{path}.{attribute}".removesuffix(".attend"), (owner, attribute, seam)))
        for path, place in found:
            seams[name if len(found) == 1 else f"{name}.{path}"] = place
    if not seams:
        raise NoAttention(f"{type(model).__name__} has no attention to record; what='stream' and what='norms' it has")
    return seams


T = TypeVar("T")


def choose(found: dict[str, T], layers: Sequence[str] | str | None) -> dict[str, T]:
    """Those that match one of the patterns by their own name or their block's; each pattern must match something."""
    if layers is None:
        return found
    patterns = checked_texts("layers", layers)
    if not patterns:
        raise ValueError("layers is empty; leave it out to record all of them")
    blocks = {name: ".".join(name.split(".")[:2]) for name in found}
    for pattern in patterns:
        if not fnmatch.filter([*blocks, *blocks.values()], pattern):
            raise ValueError(f"there is no layer {pattern!r}{did_you_mean(pattern, found)}")
    chosen = {word for pattern in patterns for word in fnmatch.filter([*blocks, *blocks.values()], pattern)}
    return {name: item for name, item in found.items() if {name, blocks[name]} & chosen}
