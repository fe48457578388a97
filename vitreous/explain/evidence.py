"""Evidence by block for one image: attention maps per head, their measures, and token norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.explain.attribution import frozen_eval
from vitreous.explain.maps import MAX_MATRIX_ELEMENTS, RelativePoint, cell_at, relative_to_mean
from vitreous.explain.measures import effective_rank, mean_distance, outliers
from vitreous.explain.plain_numbers import to_json_list
from vitreous.explain.record import record
from vitreous.explain.recorder import Attention
from vitreous.explain.rollout import class_attention, relevance_map, rollout
from vitreous.explain.score import outputs_of
from vitreous.explain.trace import Trace
from vitreous.layers.layout import Channels, Points
from vitreous.layers.position import Grid
from vitreous.models.base import Model

#: Above this the effective rank is NaN: the cost of singular values is cubic in the number of tokens.
MAX_TOKENS_FOR_RANK = 800
CHANNEL_ATTENTION = "this is attention between channels, not between tokens"


@dataclass(frozen=True)
class PointEvidence:
    """Sampling points of one cell in deformable attention, (x, y) from 0 to 1, and their weights, by group of heads."""

    points: Float[Tensor, "g m 2"]
    weights: Float[Tensor, "g m"]

    def to_json(self) -> dict[str, Any]:
        return {"points": to_json_list(self.points), "weights": to_json_list(self.weights)}


@dataclass(frozen=True)
class LayerEvidence:
    """The attention of one block. Maps are relative to uniform attention; measures have a value per head."""

    name: str
    grid: Grid
    num_prefix: int
    rows: slice  # the tokens that the classifier reads
    cells_attend: bool  # False where only prefix tokens have queries
    heads: Float[Tensor, "h y x"]
    view: Float[Tensor, "y x"] | None  # attention of the chosen cell, mean over heads; None if cells have no queries
    mean_matrix: Float[Tensor, "n n"]  # token matrix, mean over heads, for rollout
    distance: Float[Tensor, " h"]  # pixels
    entropy: Float[Tensor, " h"]  # nats
    rank: Float[Tensor, " h"]
    points: PointEvidence | None = None

    def to_json(self) -> dict[str, Any]:
        """Return maps and measures; the token matrix is left out for its size."""
        return {
            "grid": list(self.grid),
            "num_prefix": self.num_prefix,
            "heads": to_json_list(self.heads),
            "view": None if self.view is None else to_json_list(self.view),
            "distance": to_json_list(self.distance),
            "entropy": to_json_list(self.entropy),
            "rank": to_json_list(self.rank),
            "points": None if self.points is None else self.points.to_json(),
        }


@torch.no_grad()
def collect_layers(
    model: Model, image: Float[Tensor, "1 c y x"], place: RelativePoint
) -> tuple[dict[str, LayerEvidence], dict[str, str]]:
    """Collect the evidence of each block, and the reasons for blocks without; one token matrix at a time."""
    with frozen_eval(model), record(model) as trace:
        outputs_of(model, image)
    layers: dict[str, LayerEvidence] = {}
    reasons = {name: CHANNEL_ATTENTION for name, attention in trace.items() if isinstance(attention.layout, Channels)}
    for block, attentions in trace.self_attentions().items():
        try:
            layers[block] = collect_layer(trace, block, attentions, place)
        except ValueError as error:
            reasons[block] = str(error)
    return layers, reasons


def collect_layer(trace: Trace, block: str, attentions: list[Attention], place: RelativePoint) -> LayerEvidence:
    grid, num_prefix = trace.grid_and_prefix(block)
    num_tokens = num_prefix + math.prod(grid)
    if attentions[0].weights.shape[1] * num_tokens**2 > MAX_MATRIX_ELEMENTS:
        raise ValueError(f"a matrix of {num_tokens:,} × {num_tokens:,} tokens is too large")
    matrix = trace.token_matrix(block)
    row, column = cell_at(place, grid)
    cell = row * grid[1] + column
    view = matrix[0, :, num_prefix + cell, num_prefix:].mean(dim=0)
    return LayerEvidence(
        name=block,
        grid=grid,
        num_prefix=num_prefix,
        heads=relative_to_mean(class_attention(matrix, grid, num_prefix, rows=trace.read_tokens(block))[0]),
        view=relative_to_mean(view.unflatten(0, grid)) if view.sum() > 0 else None,
        rows=trace.read_tokens(block),
        cells_attend=bool(matrix[0, :, num_prefix:].any()),
        mean_matrix=matrix[0].mean(dim=0).cpu(),
        distance=mean_distance(matrix, grid, num_prefix, stride=trace.stride(grid))[0].cpu(),
        entropy=trace.entropy_of(attentions[0])[0].cpu(),
        rank=effective_ranks(matrix[0]).cpu(),
        points=collect_points(attentions, cell),
    )


def effective_ranks(matrix: Float[Tensor, "h n n"]) -> Float[Tensor, " h"]:
    small = matrix.shape[-1] <= MAX_TOKENS_FOR_RANK
    return effective_rank(matrix) if small else matrix.new_full((len(matrix),), torch.nan)


def collect_points(attentions: list[Attention], cell: int) -> PointEvidence | None:
    """The sampling points of a cell and its weights for them; points may be shared by all cells."""
    for attention in attentions:
        if isinstance(attention.layout, Points):
            points = attention.layout.points[0].detach()  # (groups of heads, queries or 1, points, 2)
            weights = attention.weights[0, :, cell].unflatten(0, (len(points), -1)).mean(dim=1)
            return PointEvidence(points[:, cell if points.shape[1] > 1 else 0].cpu(), weights.cpu())
    return None


def depth_rollout(layers: dict[str, LayerEvidence]) -> dict[str, Float[Tensor, "y x"]]:
    """Attention rollout up to each block of the last stage, relative to uniform."""
    if not layers:
        return {}
    last = list(layers.values())[-1]
    stage = [layer for layer in layers.values() if (layer.grid, layer.num_prefix) == (last.grid, last.num_prefix)]
    stage = [layer for layer in stage if layer.cells_attend]
    maps = {}
    for depth, layer in enumerate(stage, start=1):
        result = rollout([earlier.mean_matrix[None, None] for earlier in stage[:depth]])
        relevance = relevance_map(result, layer.grid, layer.num_prefix, rows=layer.rows)
        maps[layer.name] = relative_to_mean(relevance[0])
    return maps


@dataclass(frozen=True)
class TokenNorms:
    """L2 norms of all tokens after every block, and which of them are outliers."""

    lengths: dict[str, Float[Tensor, " n"]]
    outliers: dict[str, Bool[Tensor, " n"]]

    def to_json(self) -> dict[str, Any]:
        """Return, by block, all norms and the indices of the outlier tokens."""
        return {
            block: {"lengths": to_json_list(lengths), "outliers": self.outliers[block].nonzero().flatten().tolist()}
            for block, lengths in self.lengths.items()
        }


@torch.no_grad()
def collect_norms(model: Model, image: Float[Tensor, "1 c y x"]) -> TokenNorms:
    """Record the token norms of one image and find outliers."""
    with frozen_eval(model), record(model, what="norms") as trace:
        outputs_of(model, image)
    return TokenNorms(
        {name: lengths[0] for name, lengths in trace.norms.items()},
        {name: outliers(lengths)[0] for name, lengths in trace.norms.items()},
    )
