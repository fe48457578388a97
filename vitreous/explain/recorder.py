"""The module that replaces an attention op while it is recorded, and the tensors it stores.

output = mix(weights(q, k), v)              equals the fused path, through explicit weights

A recording belongs to the context that opened it: a thread or an asyncio task. Hooks and recorders are installed on the
modules, shared by all threads, and hold no state: they look up the recordings of the current context (a
``ContextVar``). A forward pass in another context finds none and takes the fast path.
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

from vitreous.explain.rollout import gradient_weighted
from vitreous.layers.attention import AttentionOp
from vitreous.layers.layout import AnyLayout, Grouped, Points
from vitreous.layers.position import Grid

if TYPE_CHECKING:
    from vitreous.explain.trace import Trace

Reduce = Callable[[Tensor], Tensor]
What = Literal["weights", "logits", "q", "k", "v", "output", "stream", "norms"]
#: Recorded per attention; the others are recorded per block.
ATTENTION_TENSORS: tuple[What, ...] = ("weights", "logits", "q", "k", "v", "output")


class NoAttention(ValueError):
    """The model has no attention, or none between the tokens of an image."""


@dataclass
class LastGradient:
    """Store the gradient of the last backward pass; ``Tensor.grad`` would accumulate over several classes."""

    value: Tensor | None = None

    def store(self, gradient: Tensor) -> None:
        self.value = gradient


@dataclass(frozen=True)
class Attention:
    """The recorded tensors of one attention; ``layout`` assigns queries and keys to tokens of the image.

    ``attention.weights`` and ``.logits`` are (b, h, queries, keys), or (b, h, groups, queries, keys) for windowed and
    other grouped attention. ``.q``, ``.k``, ``.v`` and ``.output`` are usually (b, h, tokens, width); for a Performer
    they are log features, for deformable points the logits, sampling locations and values.
    """

    layout: AnyLayout | None
    tensors: Mapping[str, Tensor]
    last_gradient: LastGradient | None = field(default=None, repr=False)

    def __getattr__(self, name: str) -> Tensor:
        if name not in ATTENTION_TENSORS:
            raise AttributeError(f"Attention has no attribute {name!r}")
        if name not in self.tensors:
            raise AttributeError(f"{name} was not recorded; use vt.record(model, what=[..., {name!r}])")
        return self.tensors[name]

    @property
    def grid(self) -> Grid | None:
        """The grid of image cells that this attention operates on."""
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
        """Gradient of the last differentiated score with respect to the weights, in the shape of the weights."""
        if self.last_gradient is None:
            raise ValueError("gradients were not recorded; use vt.record(model, gradients=True)")
        gradient = self.last_gradient.value
        if gradient is None:
            raise ValueError(
                "no gradient has been computed yet: call backward() on a score of the model's output first"
            )
        return gradient if self.layout is None else self.layout.unfold(gradient)

    def token_matrix(self) -> Float[Tensor, "b h n n"]:
        """The weights as a matrix over all tokens of the image: prefix tokens first, then cells in raster order.

        Windows are scattered to their cells, the weight of a reduced or merged key is divided evenly among its cells,
        that of a sampling point among the four cells around it. Tokens without a query have a row of zeros. Defined
        only for self-attention within an image; for cross-attention see :meth:`onto_keys`.
        """
        return self.checked_layout().to_token_matrix(self.weights)

    def gradient_weighted(self) -> Float[Tensor, "b h n n"]:
        """(∇A ⊙ A)⁺ as a token matrix: by how much each weight raised the score."""
        return self.checked_layout().to_token_matrix(gradient_weighted(self.weights, self.gradient))

    def onto_keys(self) -> Float[Tensor, "b h q *v y x"]:
        """One map per query on the grid of the keys; (b, h, q, v, y, x) for keys of several views."""
        return self.checked_layout().onto_keys(self.weights)

    def checked_layout(self) -> AnyLayout:
        """The layout, after checking that it exists and that ``reduce`` left the axes that it needs."""
        if self.layout is None:
            raise ValueError("this attention has no layout of its queries and keys; pass layout= to its AttentionOp")
        if self.weights.ndim != (5 if isinstance(self.layout, Grouped) else 4):
            shape = tuple(self.weights.shape)
            raise ValueError(f"weights reduced to shape {shape} have lost their queries, keys or heads")
        return self.layout


@dataclass(eq=False)
class Recording:
    """The modules that one ``with record(…)`` records, and the trace that it fills."""

    trace: Trace
    what: Collection[What]
    reduce: Reduce | None
    gradients: bool
    ops: dict[nn.Module, str]
    blocks: dict[nn.Module, str]
    input_modules: set[nn.Module]  # candidates for the one that receives the images; reduced to it by the first pass

    def attend(self, op: AttentionOp, *qkv: Tensor, layout: AnyLayout | None, **options: Any) -> Tensor:
        """Compute the output of an attention op, and store the requested tensors."""
        name, (q, k, v) = self.ops[op], qkv
        tensors: dict[str, Tensor] = {part: x for part, x in (("q", q), ("k", k), ("v", v)) if part in self.what}
        last_gradient = None
        if "logits" in self.what:
            tensors["logits"] = op.logits(q, k, **options)
        if "weights" in self.what:
            weights = op.weights(q, k, **options)
            tensors["weights"] = weights
            last_gradient = attach_gradient_hook(weights) if self.gradients else None
            out = op.mix(F.dropout(weights, op.drop_rate, op.training), k, v, **options)
        else:
            out = op(q, k, v, layout=layout, **options)
        if "output" in self.what:
            tensors["output"] = out
        if isinstance(layout, Points):
            layout = layout._replace(points=layout.points.detach())  # else the autograd graph stays alive
        stored = {part: self.unfolded(part, x, layout) for part, x in tensors.items()}
        self.trace.add(name, Attention(layout, stored, last_gradient))
        return out

    def unfolded(self, name: str, x: Tensor, layout: AnyLayout | None) -> Tensor:
        """Detach a tensor, unfold its groups, and reduce the weights."""
        x = x.detach()
        if layout is not None and (name in ("weights", "logits") or isinstance(layout, Grouped)):
            x = layout.unfold(x)
        return compact(self.reduce(x) if self.reduce is not None and name == "weights" else x)

    def record_input(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Store the images that the first module receives, through ``model()`` or a method such as ``features()``."""
        if module in self.input_modules and args and isinstance(args[0], Tensor) and args[0].ndim == 4:
            self.trace.images = args[0].detach()
            self.input_modules.intersection_update({module})  # the others run later in every pass

    def record_output(self, block: nn.Module, out: Tensor) -> None:
        if block not in self.blocks:
            return
        name = self.blocks[block]
        if "stream" in self.what:
            self.trace.stream[name] = out.detach()
        if "norms" in self.what:
            channels = -1 if out.ndim == 3 else 1
            self.trace.norms[name] = out.detach().norm(dim=channels).flatten(1)

    def open(self) -> None:
        ACTIVE.set((*ACTIVE.get(), self))

    def close(self) -> None:
        """Stop recording, also in copies of the context: a task may outlive the with block."""
        ACTIVE.set(tuple(recording for recording in ACTIVE.get() if recording is not self))
        for modules in (self.ops, self.blocks, self.input_modules):
            modules.clear()


#: The recordings of the current thread or task.
ACTIVE: ContextVar[tuple[Recording, ...]] = ContextVar("open recordings", default=())


def active_recording(op: nn.Module) -> Recording | None:
    """The recording of the current context that records an op; there is at most one."""
    return next((recording for recording in ACTIVE.get() if op in recording.ops), None)


def record_input(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Forward pre-hook: pass a module's input to the recordings of the current context."""
    for recording in ACTIVE.get():
        recording.record_input(module, args)


def record_output(block: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
    """Forward hook: pass a block's output to the recordings of the current context."""
    for recording in ACTIVE.get():
        recording.record_output(block, out)


class Recorder(nn.Module):
    """Wrap an attention op: report to the recording of the current context, or run the op if there is none."""

    def __init__(self, op: AttentionOp) -> None:
        super().__init__()
        self.op = op
        self.training = op.training
        self.users = 1  # number of recordings, over all threads

    def forward(self, *qkv: Tensor, layout: AnyLayout | None = None, **options: Any) -> Tensor:
        recording = active_recording(self.op)
        if recording is None:
            out: Tensor = self.op(*qkv, layout=layout, **options)
            return out
        return recording.attend(self.op, *qkv, layout=layout, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> AttentionOp:
        """Copy the wrapped op, so that a copy of a model under recording has no recorders."""
        return copy.deepcopy(self.op, memo)


def attach_gradient_hook(weights: Tensor) -> LastGradient:
    """Store the gradient of every backward pass through these weights."""
    if not torch.is_grad_enabled():
        raise ValueError("gradients=True needs autograd: call the model outside torch.no_grad()")
    if not weights.requires_grad:
        weights.requires_grad_()  # a frozen model
    gradient = LastGradient()
    weights.register_hook(gradient.store)
    return gradient


def compact(tensor: Tensor) -> Tensor:
    """Clone a view whose storage is larger than itself, so that the rest of the storage can be freed."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
