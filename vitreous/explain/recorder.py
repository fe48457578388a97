"""What stands in for a seam while it is recorded, and what is kept of one forward pass.

output = mix(weights(q, k), v)              the same as the fast path, through weights that can be looked at

A recording belongs to the context that opened it: a thread, or an asynchronous task. Hooks and stand-ins hang on the
modules of the model, for all threads alike, and hold nothing: they ask the context they run in for its recordings. A
forward pass in another context finds none there and takes the fast path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.explain.rollout import raising
from vitreous.layers.attention import Seam
from vitreous.layers.layout import AnyLayout, Grouped, Points
from vitreous.layers.position import Grid

if TYPE_CHECKING:
    from vitreous.explain.trace import Trace

Reduce = Callable[[Tensor], Tensor]
What = Literal["weights", "logits", "q", "k", "v", "output", "stream", "norms"]
#: What belongs to an attention; the others belong to a block.
OF_ATTENTION: tuple[What, ...] = ("weights", "logits", "q", "k", "v", "output")


class NoAttention(ValueError):
    """There is nothing to record, or nothing that says who looks where."""


@dataclass
class Gradient:
    """That of the last backward pass; ``Tensor.grad`` would add up those of several classes."""

    last: Tensor | None = None

    def keep(self, gradient: Tensor) -> None:
        self.last = gradient


@dataclass(frozen=True)
class Attention:
    """One attention of the last forward pass; ``layout`` says what queries and keys stand for.

    ``attention.weights`` and ``.logits`` are (b, h, queries, keys), and (b, h, groups, queries, keys) where cells look
    in groups. ``.q``, ``.k``, ``.v`` and ``.output`` are what it works with: mostly (b, h, tokens, width); log features
    for a Performer; logits, places and values for points.
    """

    layout: AnyLayout | None
    kept: Mapping[str, Tensor]
    followed: Gradient | None = field(default=None, repr=False)

    def __getattr__(self, name: str) -> Tensor:
        if name not in OF_ATTENTION:
            raise AttributeError(f"an attention has no {name!r}")
        if name not in self.kept:
            raise AttributeError(f"{name} was not recorded; ask for it: vt.record(model, what=[..., {name!r}])")
        return self.kept[name]

    @property
    def grid(self) -> Grid | None:
        """The cells of the image that this attention works on."""
        return self.layout.grid if self.layout is not None else None

    @property
    def query_grid(self) -> Grid | None:
        return self.layout.queries.grid if self.layout is not None else None

    @property
    def key_grid(self) -> Grid | None:
        return self.layout.keys.grid if self.layout is not None else None

    @property
    def num_prefix(self) -> int:
        return self.layout.keys.num_prefix if self.layout is not None else 0

    @property
    def gradient(self) -> Float[Tensor, ...]:
        """d(what was differentiated last) / d(weights), in the shape of the weights."""
        if self.followed is None:
            raise ValueError("gradients were not recorded; use vt.record(model, gradients=True)")
        if self.followed.last is None:
            raise ValueError("no gradient has come yet: call backward() on a score of the model's output first")
        last = self.followed.last
        return last if self.layout is None else self.layout.unfold(last)

    def whole(self) -> Float[Tensor, "b h n n"]:
        """How much every token of the image takes from every other: prefix tokens first, then cells in raster order.

        Windows are scattered to their places, a reduced or merged key is shared evenly by its cells, a point by the
        four cells around it. Tokens that do not ask here have a row of zeros. It exists only where the tokens of one
        image look at each other; :meth:`onto_keys` is there for cross-attention too.
        """
        return self.known_layout().whole(self.weights)

    def raised(self) -> Float[Tensor, "b h n n"]:
        """(∇A ⊙ A)⁺ laid out in the same way: how far what was taken raised the score."""
        return self.known_layout().whole(raising(self.weights, self.gradient))

    def onto_keys(self) -> Float[Tensor, "b h q *v y x"]:
        """How much each query takes from each cell of the keys' grid; (b, h, q, v, y, x) for keys of several views."""
        return self.known_layout().onto_keys(self.weights)

    def known_layout(self) -> AnyLayout:
        """The layout, if there is one and the weights still have the axes it speaks of."""
        if self.layout is None:
            raise ValueError("this attention does not say what its queries and keys stand for")
        if self.weights.ndim != (5 if isinstance(self.layout, Grouped) else 4):
            shape = tuple(self.weights.shape)
            raise ValueError(f"weights reduced to shape {shape} have lost their queries, keys or heads")
        return self.layout


@dataclass(eq=False)
class Recording:
    """What one ``with record(…)`` looks at, by the modules themselves, and where it keeps what it saw."""

    trace: Trace
    what: Collection[What]
    reduce: Reduce | None
    gradients: bool
    seams: dict[nn.Module, str]
    blocks: dict[nn.Module, str]
    parts: set[nn.Module]  # of which the first to be given images is the one that keeps being asked for them

    def attend(self, seam: Seam, *qkv: Tensor, layout: AnyLayout | None, **options: Any) -> Tensor:
        """Compute what the seam computes, and keep what is wanted of it."""
        name, (q, k, v) = self.seams[seam], qkv
        kept: dict[str, Tensor] = {part: x for part, x in (("q", q), ("k", k), ("v", v)) if part in self.what}
        followed = None
        if "logits" in self.what:
            kept["logits"] = seam.logits(q, k, **options)
        if "weights" in self.what:
            weights = seam.weights(q, k, **options)
            kept["weights"] = weights
            followed = follow(weights) if self.gradients else None
            out = seam.mix(F.dropout(weights, seam.drop_rate, seam.training), k, v, **options)
        else:
            out = seam(q, k, v, layout=layout, **options)
        if "output" in self.what:
            kept["output"] = out
        if isinstance(layout, Points):
            layout = layout._replace(points=layout.points.detach())  # which would keep the whole graph alive
        shown = {part: self.shown(part, x, layout) for part, x in kept.items()}
        self.trace.keep(name, Attention(layout, shown, followed))
        return out

    def shown(self, name: str, x: Tensor, layout: AnyLayout | None) -> Tensor:
        x = x.detach()
        if layout is not None and (name in ("weights", "logits") or isinstance(layout, Grouped)):
            x = layout.unfold(x)
        return compact(self.reduce(x) if self.reduce is not None and name == "weights" else x)

    def see_input(self, part: nn.Module, given: tuple[Any, ...]) -> None:
        """Keep the images that the first part of the model is given, whether the model is called or a method of it."""
        if part in self.parts and given and isinstance(given[0], Tensor) and given[0].ndim == 4:
            self.trace.images = given[0].detach()
            self.parts.intersection_update({part})  # the others come later in every pass

    def see_output(self, block: nn.Module, out: Tensor) -> None:
        if block not in self.blocks:
            return
        name = self.blocks[block]
        if "stream" in self.what:
            self.trace.stream[name] = out.detach()
        if "norms" in self.what:
            channels = -1 if out.ndim == 3 else 1
            self.trace.norms[name] = out.detach().norm(dim=channels).flatten(1)

    def open(self) -> None:
        OPEN.set((*OPEN.get(), self))

    def close(self) -> None:
        """Look at nothing any more, in a copy of the context either: a task that goes on after the with block."""
        OPEN.set(tuple(recording for recording in OPEN.get() if recording is not self))
        for watched in (self.seams, self.blocks, self.parts):
            watched.clear()


#: The recordings of this thread or task.
OPEN: ContextVar[tuple[Recording, ...]] = ContextVar("open recordings", default=())


def recording_of(seam: nn.Module) -> Recording | None:
    """The recording of this context that looks at a seam; there is one at most."""
    return next((recording for recording in OPEN.get() if seam in recording.seams), None)


def see_input(part: nn.Module, given: tuple[Any, ...]) -> None:
    """Show the recordings of this context what a part of a model is given (a forward pre-hook)."""
    for recording in OPEN.get():
        recording.see_input(part, given)


def see_output(block: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
    """Show the recordings of this context what a block gives (a forward hook)."""
    for recording in OPEN.get():
        recording.see_output(block, out)


class Recorder(nn.Module):
    """A seam that shows itself to the recording of the context it runs in; without one it is the seam."""

    def __init__(self, seam: Seam) -> None:
        super().__init__()
        self.seam = seam
        self.training = seam.training
        self.users = 1  # recordings, of all threads

    def forward(self, *qkv: Tensor, layout: AnyLayout | None = None, **options: Any) -> Tensor:
        recording = recording_of(self.seam)
        if recording is None:
            out: Tensor = self.seam(*qkv, layout=layout, **options)
            return out
        return recording.attend(self.seam, *qkv, layout=layout, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Seam:
        """Copy the seam: a copy of a model that is being recorded is a plain model."""
        return copy.deepcopy(self.seam, memo)


def follow(weights: Tensor) -> Gradient:
    if not torch.is_grad_enabled():
        raise ValueError("gradients=True needs autograd: call the model outside torch.no_grad()")
    if not weights.requires_grad:
        weights.requires_grad_()  # a frozen model
    gradient = Gradient()
    weights.register_hook(gradient.keep)
    return gradient


def compact(tensor: Tensor) -> Tensor:
    """A tensor that holds no more memory than it shows: a view would keep all of what it looks at."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
