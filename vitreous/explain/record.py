"""Attention as it really was.

Fused kernels never hold the attention weights. Inside ``with record(model)``, and only there, every seam (see
``layers/attention.py``) is replaced by a module that computes the same output through explicit weights and keeps them.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from vitreous.explain.recorder import OF_ATTENTION, NoAttention, Recorder, Reduce, What
from vitreous.explain.trace import Trace
from vitreous.layers.attention import Seam
from vitreous.models.base import Model
from vitreous.options import did_you_mean

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
    reduction = check_reduce(reduce, gradients=gradients)
    model = plain(model)
    seams = choose(find_seams(model), layers) if wanted & set(OF_ATTENTION) else {}
    blocks = choose(dict(named_blocks(model)), layers) if wanted & {"stream", "norms"} else {}
    trace = Trace(model, list(seams))
    with ExitStack() as stack:
        stack.callback(watch_images(model, trace).remove)
        if blocks:
            stack.callback(watch_blocks(blocks, wanted, trace).remove)
        for name, (owner, attribute, seam) in seams.items():
            keep = partial(trace.keep, name)
            recorder = Recorder(seam, keep, what=wanted, reduce=reduction, gradients=gradients).train(seam.training)
            setattr(owner, attribute, recorder)
            stack.callback(put_back, owner, attribute, seam)
        yield trace


def check_what(what: What | Sequence[What]) -> set[What]:
    wanted = {what} if isinstance(what, str) else set(what)
    for name in sorted(wanted):
        if name not in get_args(What):
            choices = ", ".join(get_args(What))
            raise ValueError(f"what must be of {choices}; got {name!r}{did_you_mean(str(name), get_args(What))}")
    return wanted


def check_reduce(reduce: str | Reduce | None, *, gradients: bool) -> Reduce | None:
    if gradients and reduce is not None:
        raise ValueError("gradients need the weights of every head; leave reduce out, and choose layers to save memory")
    if isinstance(reduce, str):
        if reduce not in REDUCTIONS:
            raise ValueError(f"there is no reduction {reduce!r}{did_you_mean(reduce, REDUCTIONS)}")
        return REDUCTIONS[reduce]
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


def watch_images(model: Model, trace: Trace) -> RemovableHandle:
    """What the first part of the model is given, whether the model is called or its ``features``.

    Hooks here are torch's global ones, which leave the model as it is: a copy of it is not watched.
    """
    parts = set(model.modules()) - {model}

    def keep(part: nn.Module, given: tuple[Any, ...]) -> None:
        if part in parts and given[0].ndim == 4:
            trace.images = given[0].detach()
            parts.intersection_update({part})  # the others come later in every pass

    return register_module_forward_pre_hook(keep)


def watch_blocks(blocks: dict[str, nn.Module], wanted: set[What], trace: Trace) -> RemovableHandle:
    names = {block: name for name, block in blocks.items()}

    def keep(part: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        if part not in names:
            return
        if "stream" in wanted:
            trace.stream[names[part]] = out.detach()
        if "norms" in wanted:
            channels = -1 if out.ndim == 3 else 1
            trace.norms[names[part]] = out.detach().norm(dim=channels).flatten(1)

    return register_module_forward_hook(keep)


def put_back(owner: nn.Module, attribute: str, seam: Seam) -> None:
    seam.train(getattr(owner, attribute).training)
    setattr(owner, attribute, seam)


Place = tuple[nn.Module, str, Seam]


def named_blocks(model: Model) -> Iterator[tuple[str, nn.Module]]:
    for index, block in enumerate(model.blocks()):
        yield f"blocks.{index}", block


def find_seams(model: Model) -> dict[str, Place]:
    """Every seam with its owner, named by its block, and by its path too when the block has several."""
    seams: dict[str, Place] = {}
    owners: set[nn.Module] = set()
    for name, block in named_blocks(model):
        found = []
        for path, owner in block.named_modules():
            if owner in owners:
                continue  # a block that stands in several places is one block
            owners.add(owner)
            for attribute, child in owner.named_children():
                if isinstance(child, Recorder):
                    raise ValueError("this model is being recorded already; use the trace of the outer with block")
                if isinstance(child, Seam):
                    found.append((f"{path}.{attribute}".removesuffix(".attend"), (owner, attribute, child)))
        for path, seam in found:
            seams[name if len(found) == 1 else f"{name}.{path}"] = seam
    if not seams:
        raise NoAttention(f"{type(model).__name__} has no attention to record; what='stream' and what='norms' it has")
    return seams


T = TypeVar("T")


def choose(found: dict[str, T], layers: Sequence[str] | str | None) -> dict[str, T]:
    """Those that match one of the patterns by their own name or their block's; each pattern must match something."""
    if layers is None:
        return found
    patterns = [layers] if isinstance(layers, str) else list(layers)
    if not patterns:
        raise ValueError("layers is empty; leave it out to record all of them")
    blocks = {name: ".".join(name.split(".")[:2]) for name in found}
    for pattern in patterns:
        if not fnmatch.filter([*blocks, *blocks.values()], pattern):
            raise ValueError(f"there is no layer {pattern!r}{did_you_mean(pattern, found)}")
    chosen = {word for pattern in patterns for word in fnmatch.filter([*blocks, *blocks.values()], pattern)}
    return {name: item for name, item in found.items() if {name, blocks[name]} & chosen}
