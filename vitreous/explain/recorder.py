"""What stands in for a seam while it is recorded, and what it keeps of one forward pass.

output = mix(weights(q, k), v)              the same as the fast path, through weights that can be looked at
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.explain.rollout import raising
from vitreous.layers.attention import Seam
from vitreous.layers.layout import AnyLayout, Grouped, Layout, Points
from vitreous.layers.position import Grid

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
        """The cells of the picture that this attention works on."""
        return self.layout.grid if self.layout is not None else None

    @property
    def query_grid(self) -> Grid | None:
        return self.layout.query_grid if isinstance(self.layout, Layout) else self.grid

    @property
    def key_grid(self) -> Grid | None:
        return self.layout.key_grid if isinstance(self.layout, Layout) else self.grid

    @property
    def num_prefix(self) -> int:
        return self.layout.num_prefix if self.layout is not None else 0

    @property
    def gradient(self) -> Float[Tensor, ...]:
        """d(what was differentiated last) / d(weights), in the shape of the weights."""
        if self.followed is None:
            raise ValueError("gradients were not recorded; use vt.record(model, gradients=True)")
        if self.followed.last is None:
            raise ValueError("no gradient has come yet: call backward() on a score of the model's output first")
        return unfold(self.followed.last, self.layout)

    def whole(self) -> Float[Tensor, "b h n n"]:
        """How much every token of the picture takes from every other: prefix tokens first, then cells in raster order.

        Windows are scattered to their places, a reduced key is shared evenly by the cells of its region, a point by the
        four cells around it. Tokens that do not ask here have a row of zeros.
        """
        return self.laid_out(self.weights)

    def raised(self) -> Float[Tensor, "b h n n"]:
        """(∇A ⊙ A)⁺ laid out in the same way: how far what was taken raised the score."""
        return self.laid_out(raising(self.weights, self.gradient))

    def laid_out(self, weights: Float[Tensor, ...]) -> Float[Tensor, "b h n n"]:
        if self.layout is None:
            raise ValueError("this attention does not say what its queries and keys stand for")
        if weights.ndim != (5 if isinstance(self.layout, Grouped) else 4):
            raise ValueError(f"weights reduced to shape {tuple(weights.shape)} have lost their queries, keys or heads")
        return self.layout.whole(weights)


def unfold(x: Tensor, layout: AnyLayout | None) -> Tensor:
    return x if layout is None else layout.unfold(x)


class Recorder(nn.Module):
    """The same output as the seam it stands in for; what was asked for goes to ``keep``."""

    def __init__(
        self,
        seam: Seam,
        keep: Callable[[Attention], None],
        *,
        what: Collection[What],
        reduce: Reduce | None,
        gradients: bool,
    ) -> None:
        super().__init__()
        self.seam = seam
        self.keep = keep
        self.what = what
        self.reduce = reduce
        self.gradients = gradients

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, layout: AnyLayout | None = None, **options: Any) -> Tensor:
        kept: dict[str, Tensor] = {name: x for name, x in (("q", q), ("k", k), ("v", v)) if name in self.what}
        followed = None
        if "logits" in self.what:
            kept["logits"] = self.seam.logits(q, k, **options)
        if "weights" in self.what:
            weights = self.seam.weights(q, k, **options)
            kept["weights"] = weights
            followed = self.follow(weights) if self.gradients else None
            out = self.seam.mix(F.dropout(weights, self.seam.drop_rate, self.training), k, v, **options)
        else:
            out = self.seam(q, k, v, layout=layout, **options)
        if "output" in self.what:
            kept["output"] = out
        if isinstance(layout, Points):
            layout = layout._replace(points=layout.points.detach())  # which would keep the whole graph alive
        self.keep(Attention(layout, {name: self.shown(name, x, layout) for name, x in kept.items()}, followed))
        return out

    def follow(self, weights: Tensor) -> Gradient:
        if not torch.is_grad_enabled():
            raise ValueError("gradients=True needs autograd: call the model outside torch.no_grad()")
        if not weights.requires_grad:
            weights.requires_grad_()  # a frozen model
        gradient = Gradient()
        weights.register_hook(gradient.keep)
        return gradient

    def shown(self, name: str, x: Tensor, layout: AnyLayout | None) -> Tensor:
        x = x.detach()
        if name in ("weights", "logits") or isinstance(layout, Grouped):
            x = unfold(x, layout)
        return compact(self.reduce(x) if self.reduce is not None and name == "weights" else x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Seam:
        """A copy of a model that is being recorded is a plain model."""
        return copy.deepcopy(self.seam, memo)


def compact(tensor: Tensor) -> Tensor:
    """A tensor that holds no more memory than it shows: a view would keep all of what it looks at."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
