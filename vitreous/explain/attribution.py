"""Attribution methods: heat maps of the image regions that a prediction depends on.

    heat = METHODS["gradient rollout"](model, images, class_score(targets))        (b, v, w)

Each method takes a model, normalized images and a score of the outputs (``score.py``), such as the logit of a class,
and returns a map that is higher where the image matters more for that score. Attention shows where information is read
from, not what it is used for; occlusion and integrated gradients treat the model as a black box and need no attention.
``faithfulness.py`` measures which method to trust on a given model.
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

WINDOWS_PER_SIDE = 7  # default of occlusion
MIN_CELLS = 7  # per side, if a feature map of the model is that fine


def class_attention(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """Attention of the class token in the last block, mean over heads of w(class, k)."""
    stage = last_stage_attention(model, images)
    return rollout.class_attention(stage.matrices[-1], stage.grid, stage.num_prefix, rows=stage.rows).mean(dim=1)


def mean_attention(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """Attention received by each cell in the last block, n · mean over heads and queries of w(q, k)."""
    stage = last_stage_attention(model, images)
    return measures.mean_map(stage.matrices[-1], stage.grid, stage.num_prefix)


def attention_rollout(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """Attention rollout: the class token's row of ∏ ½ (A + I). Independent of the score."""
    stage = last_stage_attention(model, images)
    return rollout.relevance_map(rollout.rollout(stage.matrices), stage.grid, stage.num_prefix, rows=stage.rows)


def gradient_rollout(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """Gradient-weighted attention rollout: A is replaced by the mean over heads of (∇A ⊙ A)⁺."""
    stage = last_stage_attention(model, images, score)
    relevance = rollout.gradient_rollout(stage.gradient_weighted)
    return rollout.relevance_map(relevance, stage.grid, stage.num_prefix, rows=stage.rows, without_identity=True)


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
    """Occlusion: heat(p) = mean over the windows that cover p of [score − score with the window hidden].

    "Visualizing and Understanding Convolutional Networks", Zeiler and Fergus 2013 (arXiv 1311.2901). Evidence that is
    present twice is attributed to neither place: hiding one of two equal objects changes little.

    Args:
        model: Put into evaluation mode meanwhile.
        images: Normalized images.
        score: The explained score of the outputs.
        window: Size in pixels. Default: a seventh of the image.
        stride: Step between windows in pixels. Default: the window size. Windows are clipped at the border.
        baseline: Pixels that replace the window, broadcastable to ``images``. Default: 0, the mean color.
        batch_size: Number of occluded images per forward pass.
    """
    check_score(score, model, len(images))
    size = (images.shape[2], images.shape[3])
    window = pair(window, "window") if window else grid_of(size, (WINDOWS_PER_SIDE, WINDOWS_PER_SIDE))
    stride = pair(stride, "stride") if stride else window
    if stride[0] > window[0] or stride[1] > window[1]:
        raise ValueError(f"a stride of {stride} leaves gaps between windows of {window}; choose a smaller stride")
    hidden = torch.zeros_like(images) if baseline is None else baseline.expand_as(images)
    covers = window_masks(size, window, stride).to(images.device)
    with frozen_eval(model), torch.no_grad():
        occluded = [
            scores(model, torch.where(covers[window_index, None], hidden[image], images[image]), take(score, image))
            for image, window_index in batched_pairs(len(images), len(covers), batch_size, images.device)
        ]
        original = scores(model, images, score)
    drop = original[:, None] - torch.cat(occluded).unflatten(0, (len(images), len(covers)))
    coverage = covers.to(images.dtype)
    return torch.einsum("bw, wyx -> byx", drop, coverage) / coverage.sum(dim=0)


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
    """Integrated gradients: heat(p) = Σ over channels of (x − x′) ∫₀¹ ∂score(x′ + α (x − x′)) / ∂x dα.

    "Axiomatic Attribution for Deep Networks", Sundararajan et al. 2017 (arXiv 1703.01365). Complete: the heat of an
    image sums to score(x) − score(x′), up to the quadrature error. Pixels equal to the baseline always get zero heat.

    Args:
        model: Put into evaluation mode meanwhile.
        images: Normalized images x.
        score: The explained score of the outputs.
        steps: Number of quadrature points.
        rule: Quadrature rule.
        baseline: x′, broadcastable to ``images``. Default: 0, the mean color.
        batch_size: Number of gradients per backward pass.
    """
    check_score(score, model, len(images))
    start = torch.zeros_like(images) if baseline is None else baseline.expand_as(images)
    alphas, weights = (values.to(images) for values in quadrature(rule, steps))
    total = torch.zeros_like(images)
    with frozen_eval(model):
        for image, step in batched_pairs(len(images), steps, batch_size, images.device):
            points = start[image] + alphas[step, None, None, None] * (images - start)[image]
            slopes = gradient(model, points, take(score, image))
            total.index_add_(0, image, weights[step, None, None, None] * slopes)
    return ((images - start) * total).sum(dim=1)


def random(model: Model, images: Float[Tensor, "b c y x"], score: Score) -> Float[Tensor, "b v w"]:
    """Uniform random heat, the control for all other methods; controlled by ``torch.manual_seed``."""
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
ATTENTION_METHODS = ("class attention", "mean attention", "rollout", "gradient rollout")


def methods_for(model: Model) -> dict[str, Method]:
    """The methods that apply to a model, determined by a forward pass of one empty image."""
    like = next(model.parameters())
    empty = torch.zeros(1, model.config.num_channels, *model.config.image_size, device=like.device, dtype=like.dtype)
    try:
        last_stage_attention(model, empty)
    except NoAttention:
        return {name: method for name, method in METHODS.items() if name not in ATTENTION_METHODS}
    return METHODS


class LastStageAttention(NamedTuple):
    """Token matrices of the blocks of the last stage with attention, first to last."""

    matrices: list[Float[Tensor, "b h n n"]]
    gradient_weighted: list[Float[Tensor, "b h n n"]]  # (∇A ⊙ A)⁺; empty without a score
    grid: Grid
    num_prefix: int
    rows: slice  # the tokens that the classifier reads


def last_stage_attention(model: Model, images: Tensor, score: Score | None = None) -> LastStageAttention:
    """Record the attention of a forward pass and, given a ``score``, the gradients of a backward pass."""
    with frozen_eval(model), record(model, gradients=score is not None) as trace:
        if score is None:
            with torch.no_grad():
                outputs_of(model, images)
        else:
            check_score(score, model, len(images))
            with torch.enable_grad():
                scores(model, images.detach(), score).sum().backward()
    grid, num_prefix = trace.grid_and_prefix()
    stage, num_tokens = restrict_to_grid(trace, grid), num_prefix + grid[0] * grid[1]
    matrices, gradient_weighted = (
        [matrix for matrix in by_block.values() if matrix.shape[-1] == num_tokens]
        for by_block in (stage.token_matrices(), stage.gradient_weighted() if score is not None else {})
    )
    return LastStageAttention(matrices, gradient_weighted, grid, num_prefix, trace.read_tokens())


def restrict_to_grid(trace: Trace, grid: Grid) -> Trace:
    """A trace of the attentions on one grid.

    Earlier stages have other tokens, and too many for a token matrix: 56 × 56 cells make ten million weights per head.
    """
    stage = Trace(trace.model)
    stage.images = trace.images
    for name, attention in trace.items():
        if attention.grid == grid:
            stage.add(name, attention)
    return stage


@contextmanager
def frozen_eval(model: Model) -> Iterator[None]:
    """Put a model into evaluation mode and its parameters out of autograd; restore both on exit."""
    training = {module: module.training for module in model.modules()}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for parameter in trainable:
            parameter.requires_grad_(True)


def gradient(model: Model, images: Tensor, score: Score) -> Float[Tensor, "b c y x"]:
    """Gradient of the summed score with respect to the pixels."""
    with torch.enable_grad():
        leaf = images.detach().requires_grad_()
        return torch.autograd.grad(scores(model, leaf, score).sum(), leaf)[0]


def cell_size(model: Model, image_size: Size) -> Size:
    """Stride of the coarsest feature map with at least 7 × 7 cells, else of the finest: the unit that is hidden."""
    for stride in sorted(model.strides, reverse=True):
        if min(grid_of(image_size, stride)) >= MIN_CELLS:
            return stride
    return min(model.strides)


def window_masks(size: Size, window: Size, stride: Size) -> Tensor:
    """Boolean masks (windows, y, x) of the pixels that each window covers, in raster order, covering the image."""
    axes = []
    for side, length, step in zip(size, window, stride, strict=True):
        first = torch.arange(0, max(1, side - length + step), step)[:, None]
        pixel = torch.arange(side)
        axes.append((pixel >= first) & (pixel < first + length))
    rows, columns = axes
    return (rows[:, None, :, None] & columns[None, :, None, :]).flatten(0, 1)


def quadrature(rule: Rule, steps: int) -> tuple[Tensor, Tensor]:
    """Quadrature points in (0, 1) and their weights, which sum to 1."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if rule == "midpoint":
        return (torch.arange(steps) + 0.5) / steps, torch.full((steps,), 1 / steps)
    if rule == "gauss-legendre":
        points, weights = np.polynomial.legendre.leggauss(steps)
        return torch.from_numpy(points + 1) / 2, torch.from_numpy(weights) / 2
    raise ValueError(f"rule must be 'gauss-legendre' or 'midpoint', got {rule!r}")


def batched_pairs(first: int, second: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all pairs (i, j) of i < ``first`` and j < ``second`` in order, in batches of ``size``."""
    for start in range(0, first * second, size):
        flat = torch.arange(start, min(start + size, first * second), device=device)
        yield flat // second, flat % second
