"""Which parts of an image an answer rests on: ways to ask, each a heat map that is higher where it matters more.

    heat = METHODS["gradient rollout"](model, images, class_score(targets))        (b, v, w)

Attention says where information was fetched from, not what it was used for; occlusion and integrated gradients ask the
model as a whole, attention or not. None of them is right by name: ``faithfulness.py`` measures which one to trust. What
is explained is a score of the outputs (``score.py``), such as the logit of a class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.explain import measures, rollout
from vitreous.explain.record import record
from vitreous.explain.recorder import NoAttention
from vitreous.explain.score import Score, check_score, outputs_of, scores, take
from vitreous.explain.trace import Trace
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid
from vitreous.models.base import Model
from vitreous.spec import Size, pair

Method = Callable[[Model, Tensor, Score], Tensor]
Rule = Literal["gauss-legendre", "midpoint"]

WINDOWS = 7  # each way, where occlusion is not told its window
FEWEST_CELLS = 7  # each way, where a model's maps allow it


def class_attention(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """mean over heads of w(class, k) in the last block: what the token that is classified looks at."""
    look = attended(model, images)
    return rollout.class_attention(look.wholes[-1], look.grid, look.num_prefix, rows=look.rows).mean(dim=1)


def mean_attention(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """n · mean over heads and queries of w(q, k) in the last block: what is looked at, whoever looks."""
    look = attended(model, images)
    return measures.mean_map(look.wholes[-1], look.grid, look.num_prefix)


def attention_rollout(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """The class token's row of ∏ ½ (A + I): attention followed back through the layers; knows no class."""
    look = attended(model, images)
    return rollout.relevance_map(rollout.rollout(look.wholes), look.grid, look.num_prefix, rows=look.rows)


def gradient_rollout(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """The same with weights that count by how far they raise the score: mean over heads of (∇A ⊙ A)⁺."""
    look = attended(model, images, score)
    relevance = rollout.gradient_rollout(look.raised)
    return rollout.relevance_map(relevance, look.grid, look.num_prefix, rows=look.rows, without_identity=True)


def occlusion(
    model: Model,
    images: Float[Tensor, "b c y x"],
    score: Score,
    *,
    window: int | Size | None = None,
    stride: int | Size | None = None,
    baseline: Float[Tensor, ...] | None = None,
    batch_size: int = 64,
) -> Float[Tensor, "b y x"]:
    """heat(p) = mean over windows that cover p of [score − score with the window replaced by ``baseline``].

    "Visualizing and Understanding Convolutional Networks", Zeiler and Fergus 2013 (arXiv 1311.2901). ``window`` and
    ``stride`` are in pixels: a seventh of the image, and the window's own size. The last windows are cut off at the
    edge. The baseline is the mean color, which normalization has made 0. What two places share it counts for neither:
    hiding one of two equal objects changes little.
    """
    check_score(score, model, len(images))
    size = (images.shape[2], images.shape[3])
    window = pair(window, "window") if window else grid_of(size, (WINDOWS, WINDOWS))
    stride = pair(stride, "stride") if stride else window
    if stride[0] > window[0] or stride[1] > window[1]:
        raise ValueError(f"a stride of {stride} leaves gaps between windows of {window}; choose a smaller stride")
    hidden = torch.zeros_like(images) if baseline is None else baseline.expand_as(images)
    covers = windows(size, window, stride).to(images.device)
    with at_rest(model), torch.no_grad():
        drops = [
            scores(model, torch.where(covers[place, None], hidden[image], images[image]), take(score, image))
            for image, place in pairs(len(images), len(covers), batch_size, images.device)
        ]
        whole = scores(model, images, score)
    lost = whole[:, None] - torch.cat(drops).unflatten(0, (len(images), len(covers)))
    share = covers.to(images.dtype)
    return torch.einsum("bw, wyx -> byx", lost, share) / share.sum(dim=0)


def integrated_gradients(
    model: Model,
    images: Float[Tensor, "b c y x"],
    score: Score,
    *,
    steps: int = 32,
    rule: Rule = "gauss-legendre",
    baseline: Float[Tensor, ...] | None = None,
    batch_size: int = 64,
) -> Float[Tensor, "b y x"]:
    """heat(p) = Σ over channels of (x − x′) ∫₀¹ ∂score(x′ + α (x − x′)) / ∂x dα, with x′ the ``baseline``.

    "Axiomatic Attribution for Deep Networks", Sundararajan et al. 2017 (arXiv 1703.01365). It is complete: an image's
    heat sums to score(x) − score(x′), up to the error of the rule with so many steps. The baseline is the mean color,
    which normalization has made 0; pixels of that very color get no heat, whatever they mean.
    """
    check_score(score, model, len(images))
    start = torch.zeros_like(images) if baseline is None else baseline.expand_as(images)
    alphas, weights = (values.to(images) for values in quadrature(rule, steps))
    total = torch.zeros_like(images)
    with at_rest(model):
        for image, step in pairs(len(images), steps, batch_size, images.device):
            points = start[image] + alphas[step, None, None, None] * (images - start)[image]
            slope = gradient(model, points, take(score, image))
            total.index_add_(0, image, weights[step, None, None, None] * slope)
    return ((images - start) * total).sum(dim=1)


def random(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """Knows nothing: what every other method has to beat. ``torch.manual_seed`` decides it."""
    size = (images.shape[2], images.shape[3])
    return torch.rand(len(images), *grid_of(size, cell_size(model, size))).to(images.device)


METHODS: dict[str, Method] = {
    "class attention": class_attention,
    "mean attention": mean_attention,
    "rollout": attention_rollout,
    "gradient rollout": gradient_rollout,
    "occlusion": occlusion,
    "integrated gradients": integrated_gradients,
    "random": random,
}
OF_ATTENTION = ("class attention", "mean attention", "rollout", "gradient rollout")


def methods_for(model: Model) -> dict[str, Method]:
    """The methods that can serve this model, found out by looking at one empty image."""
    like = next(model.parameters())
    empty = torch.zeros(1, model.config.num_channels, *model.config.image_size, device=like.device, dtype=like.dtype)
    try:
        attended(model, empty)
    except NoAttention:
        return {name: method for name, method in METHODS.items() if name not in OF_ATTENTION}
    return METHODS


class Attended(NamedTuple):
    """The blocks of the last stage that attends, first to last: how much every token takes from every other."""

    wholes: list[Float[Tensor, "b h n n"]]
    raised: list[Float[Tensor, "b h n n"]]  # (∇A ⊙ A)⁺, where a score was given
    grid: Grid
    num_prefix: int
    rows: slice  # of the tokens that the classifier reads


def attended(model: Model, images: Tensor, score: Score | None = None) -> Attended:
    """Attention as it was in a forward pass, with the gradients of a ``score`` where one is given."""
    with at_rest(model), record(model, gradients=score is not None) as trace:
        if score is None:
            with torch.no_grad():
                outputs_of(model, images)
        else:
            check_score(score, model, len(images))
            with torch.enable_grad():
                scores(model, images.detach(), score).sum().backward()
    grid, num_prefix = trace.cells()
    stage, num_tokens = last_stage(trace, grid), num_prefix + grid[0] * grid[1]
    wholes, raised = (
        [layer for layer in found.values() if layer.shape[-1] == num_tokens]
        for found in (stage.whole(), stage.raised() if score is not None else {})
    )
    return Attended(wholes, raised, grid, num_prefix, trace.rows())


def last_stage(trace: Trace, grid: Grid) -> Trace:
    """Only what was recorded on the last grid.

    Earlier stages have other tokens, and too many of them to lay out: 56 × 56 cells make ten million weights a head.
    """
    stage = Trace(trace.model)
    stage.images = trace.images
    for name, attention in trace.items():
        if attention.grid == grid:
            stage.keep(name, attention)
    return stage


@contextmanager
def at_rest(model: Model) -> Iterator[None]:
    """In evaluation mode, its parameters out of autograd's sight; afterwards everything is as it was."""
    training = {module: module.training for module in model.modules()}
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for parameter in learning:
            parameter.requires_grad_(True)


def gradient(model: Model, images: Tensor, score: Score) -> Float[Tensor, "b c y x"]:
    """d(score) / d(pixels)."""
    with torch.enable_grad():
        leaf = images.detach().requires_grad_()
        return torch.autograd.grad(scores(model, leaf, score).sum(), leaf)[0]


def cell_size(model: Model, image_size: Size) -> Size:
    """What is ordered, and hidden, at a time: a cell of the coarsest map that has 7 × 7 cells, else of the finest."""
    for stride in sorted(model.strides, reverse=True):
        if min(grid_of(image_size, stride)) >= FEWEST_CELLS:
            return stride
    return min(model.strides)


def windows(size: Size, window: Size, stride: Size) -> Tensor:
    """(windows, y, x): which pixels each window covers, row by row, until the whole image is covered."""
    axes = []
    for side, length, step in zip(size, window, stride, strict=True):
        first = torch.arange(0, max(1, side - length + step), step)[:, None]
        pixel = torch.arange(side)
        axes.append((pixel >= first) & (pixel < first + length))
    rows, columns = axes
    return (rows[:, None, :, None] & columns[None, :, None, :]).flatten(0, 1)


def quadrature(rule: Rule, steps: int) -> tuple[Tensor, Tensor]:
    """Points in (0, 1) and their weights, which sum to 1."""
    if steps < 1:
        raise ValueError(f"an integral needs at least 1 step, got steps={steps}")
    if rule == "midpoint":
        return (torch.arange(steps) + 0.5) / steps, torch.full((steps,), 1 / steps)
    if rule == "gauss-legendre":
        points, weights = np.polynomial.legendre.leggauss(steps)
        return torch.from_numpy(points + 1) / 2, torch.from_numpy(weights) / 2
    raise ValueError(f"rule must be 'gauss-legendre' or 'midpoint', got {rule!r}")


def pairs(first: int, second: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """All pairs (i, j) of i < ``first`` and j < ``second``, in order, ``size`` at a time."""
    for start in range(0, first * second, size):
        both = torch.arange(start, min(start + size, first * second), device=device)
        yield both // second, both % second
