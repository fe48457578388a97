"""Attention as it really was.

Fused kernels never hold the attention weights. Inside ``with record(model)``, and only there, every ``Attend`` is
replaced by a module that computes the same output through the explicit softmax and keeps the weights.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import Attend, Layout
from vitreous.layers.position import Grid
from vitreous.models.base import Backbone
from vitreous.options import did_you_mean

Reduce = Callable[[Tensor], Tensor]

#: Reductions by name, each applied as soon as a layer has run, so that only its result is held.
REDUCTIONS: dict[str, Reduce] = {
    "mean_heads": partial(torch.mean, dim=1, keepdim=True),
    "max_heads": partial(torch.amax, dim=1, keepdim=True),
}


@dataclass(frozen=True)
class Attention:
    """One layer's attention: ``weights`` (b, h, queries, keys), and what queries and keys stand for."""

    weights: Float[Tensor, ...]
    layout: Layout | None = None

    @property
    def query_grid(self) -> Grid | None:
        return self.layout.query_grid if self.layout else None

    @property
    def key_grid(self) -> Grid | None:
        return self.layout.key_grid if self.layout else None

    @property
    def num_prefix(self) -> int:
        return self.layout.num_prefix if self.layout else 0


class Trace(Mapping[str, Attention]):
    """What the last forward pass did, by layer: ``trace["blocks.3"].weights``."""

    def __init__(self, layers: Sequence[str]) -> None:
        self.layers = tuple(layers)
        self._seen: dict[str, Attention] = {}

    def __getitem__(self, name: str) -> Attention:
        if name in self._seen:
            return self._seen[name]
        if name in self.layers:
            raise KeyError(f"{name} has not run yet: call the model inside the with block")
        raise KeyError(f"{name!r} was not recorded{did_you_mean(str(name), self.layers)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def keep(self, name: str, attention: Attention) -> None:
        self._seen[name] = attention

    def __repr__(self) -> str:
        lines = [f"  {name}: {tuple(attention.weights.shape)}" for name, attention in self.items()]
        return "\n".join([f"Trace of {len(self)} layers", *lines])


class RecordingAttend(nn.Module):
    """Stands in for an ``Attend``: the same output, and the weights kept in the trace."""

    def __init__(self, attend: Attend, name: str, trace: Trace, reduce: Reduce | None) -> None:
        super().__init__()
        self.attend = attend
        self.name = name
        self.trace = trace
        self.reduce = reduce

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, layout: Layout | None = None, **options: Tensor | None
    ) -> Tensor:
        weights = self.attend.weights(q, k, **options)
        shown = weights.detach()
        if self.reduce is not None:
            shown = compact(self.reduce(shown))
        self.trace.keep(self.name, Attention(shown, layout))
        return F.dropout(weights, self.attend.drop_rate, self.training).to(v.dtype) @ v

    def __deepcopy__(self, memo: dict[int, Any]) -> Attend:
        """A copy of a model that is being recorded is a plain model."""
        return copy.deepcopy(self.attend, memo)


def compact(tensor: Tensor) -> Tensor:
    """A tensor that holds no more memory than it shows: a view would keep all of what it looks at."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


@contextmanager
def record(
    model: Backbone, layers: Sequence[str] | str | None = None, *, reduce: str | Reduce | None = None
) -> Iterator[Trace]:
    """Record the attention of every layer, or of those that match ``layers`` ("blocks.3", "blocks.1?").

    Weights take b·h·n² numbers a layer: choose layers, or give ``reduce`` ("mean_heads", "max_heads" or a function of
    the weights) to hold only what you need. A second forward pass replaces what the first one left. While gradients
    are recorded autograd holds the full weights all the same: use ``torch.no_grad()`` to look at large models.
    """
    seams = choose(find_seams(model), layers)
    if isinstance(reduce, str):
        if reduce not in REDUCTIONS:
            raise ValueError(f"there is no reduction {reduce!r}{did_you_mean(reduce, REDUCTIONS)}")
        reduce = REDUCTIONS[reduce]
    trace = Trace(list(seams))
    try:
        for name, (owner, attribute, attend) in seams.items():
            setattr(owner, attribute, RecordingAttend(attend, name, trace, reduce).train(attend.training))
        yield trace
    finally:
        for owner, attribute, attend in seams.values():
            attend.train(getattr(owner, attribute).training)
            setattr(owner, attribute, attend)


Seam = tuple[nn.Module, str, Attend]


def find_seams(model: Backbone) -> dict[str, Seam]:
    """Every ``Attend`` with its owner, named by its block, and by its path too when the block has several."""
    if not isinstance(model, Backbone):
        raise ValueError(
            f"record needs a Vitreous model, got {type(model).__name__}; for a compiled model, pass the original"
        )
    seams: dict[str, Seam] = {}
    owners: set[nn.Module] = set()
    for index, block in enumerate(model.blocks()):
        found = []
        for path, owner in block.named_modules():
            if owner in owners:
                continue  # a block that stands in several places is one block
            owners.add(owner)
            for attribute, child in owner.named_children():
                if isinstance(child, RecordingAttend):
                    raise ValueError("this model is being recorded already; use the trace of the outer with block")
                if isinstance(child, Attend):
                    found.append((f"{path}.{attribute}".removesuffix(".attend"), (owner, attribute, child)))
        for path, seam in found:
            seams[f"blocks.{index}" if len(found) == 1 else f"blocks.{index}.{path}"] = seam
    if not seams:
        raise ValueError(f"{type(model).__name__} has no softmax attention to record")
    return seams


def choose(seams: dict[str, Seam], layers: Sequence[str] | str | None) -> dict[str, Seam]:
    if layers is None:
        return seams
    patterns = [layers] if isinstance(layers, str) else list(layers)
    for pattern in patterns:
        if not fnmatch.filter(seams, pattern):
            raise ValueError(f"there is no layer {pattern!r}{did_you_mean(pattern, seams)}")
    return {name: seam for name, seam in seams.items() if any(fnmatch.fnmatchcase(name, p) for p in patterns)}
