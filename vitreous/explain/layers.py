"""What every block of a model does with one image: attention by head, its measures, lengths of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.explain.attribution import at_rest
from vitreous.explain.maps import MOST_NUMBERS, Place, cell_at, shares
from vitreous.explain.measures import effective_rank, mean_distance, outliers
from vitreous.explain.plain_numbers import listed
from vitreous.explain.record import record
from vitreous.explain.recorder import Attention
from vitreous.explain.rollout import class_attention, relevance_map, rollout
from vitreous.explain.score import outputs_of
from vitreous.explain.trace import Trace
from vitreous.layers.layout import Channels, Points
from vitreous.layers.position import Grid
from vitreous.models.base import Model

#: Singular values take time that grows with the cube of the tokens.
MOST_TOKENS_RANKED = 800
CHANNELS = "here channels look at channels, over the whole image, and no token at another"


@dataclass(frozen=True)
class PointsSeen:
    """Where a cell reads, (x, y) from 0 to 1, and how much; by group of heads."""

    points: Float[Tensor, "g m 2"]
    weights: Float[Tensor, "g m"]

    def to_json(self) -> dict[str, Any]:
        return {"points": listed(self.points), "weights": listed(self.weights)}


@dataclass(frozen=True)
class LayerSeen:
    """One block's attention to one image. Maps are in even shares; measures have a value per head."""

    name: str
    grid: Grid
    num_prefix: int
    rows: slice  # of the tokens that the classifier reads
    cells_look: bool  # or prefix tokens alone
    heads: Float[Tensor, "h y x"]
    view: Float[Tensor, "y x"] | None  # what the chosen cell looks at, mean over heads; None where cells do not look
    together: Float[Tensor, "n n"]  # mean over heads, for rollout
    distance: Float[Tensor, " h"]  # pixels
    entropy: Float[Tensor, " h"]  # nats
    rank: Float[Tensor, " h"]
    points: PointsSeen | None = None

    def to_json(self) -> dict[str, Any]:
        """Maps and measures; the matrix of all tokens (``together``) is left out for its size."""
        return {
            "grid": list(self.grid),
            "num_prefix": self.num_prefix,
            "heads": listed(self.heads),
            "view": None if self.view is None else listed(self.view),
            "distance": listed(self.distance),
            "entropy": listed(self.entropy),
            "rank": listed(self.rank),
            "points": None if self.points is None else self.points.to_json(),
        }


@torch.no_grad()
def see_layers(
    model: Model, image: Float[Tensor, "1 c y x"], place: Place
) -> tuple[dict[str, LayerSeen], dict[str, str]]:
    """What was seen, by block, and why some blocks were left out; one block at a time is laid out."""
    with at_rest(model), record(model) as trace:
        outputs_of(model, image)
    seen: dict[str, LayerSeen] = {}
    reasons = {name: CHANNELS for name, attention in trace.items() if isinstance(attention.layout, Channels)}
    for block, attentions in trace.looking().items():
        try:
            seen[block] = see_layer(trace, block, attentions, place)
        except ValueError as error:
            reasons[block] = str(error)
    return seen, reasons


def see_layer(trace: Trace, block: str, attentions: list[Attention], place: Place) -> LayerSeen:
    grid, num_prefix = trace.cells(block)
    num_tokens = num_prefix + math.prod(grid)
    if attentions[0].weights.shape[1] * num_tokens**2 > MOST_NUMBERS:
        raise ValueError(f"{num_tokens:,} tokens that look at each other are too many to lay out")
    whole = trace.whole_of(block)
    row, column = cell_at(place, grid)
    cell = row * grid[1] + column
    own = whole[0, :, num_prefix + cell, num_prefix:].mean(dim=0)
    return LayerSeen(
        name=block,
        grid=grid,
        num_prefix=num_prefix,
        heads=shares(class_attention(whole, grid, num_prefix, rows=trace.rows(block))[0]),
        view=shares(own.unflatten(0, grid)) if own.sum() > 0 else None,
        rows=trace.rows(block),
        cells_look=bool(whole[0, :, num_prefix:].any()),
        together=whole[0].mean(dim=0).cpu(),
        distance=mean_distance(whole, grid, num_prefix, stride=trace.stride(grid))[0].cpu(),
        entropy=trace.entropy_of(attentions[0])[0].cpu(),
        rank=ranks(whole[0]).cpu(),
        points=see_points(attentions, cell),
    )


def ranks(whole: Float[Tensor, "h n n"]) -> Float[Tensor, " h"]:
    return effective_rank(whole) if len(whole[0]) <= MOST_TOKENS_RANKED else whole.new_full((len(whole),), torch.nan)


def see_points(attentions: list[Attention], cell: int) -> PointsSeen | None:
    """The points that a cell reads; where all cells share theirs, the cell's own weights for them."""
    for attention in attentions:
        if isinstance(attention.layout, Points):
            points = attention.layout.points[0].detach()  # (groups of heads, queries or 1, points, 2)
            weights = attention.weights[0, :, cell].unflatten(0, (len(points), -1)).mean(dim=1)
            return PointsSeen(points[:, cell if points.shape[1] > 1 else 0].cpu(), weights.cpu())
    return None


def rollout_by_depth(layers: dict[str, LayerSeen]) -> dict[str, Float[Tensor, "y x"]]:
    """Rollout up to each block of the last stage, in even shares."""
    if not layers:
        return {}
    last = list(layers.values())[-1]
    stage = [layer for layer in layers.values() if (layer.grid, layer.num_prefix) == (last.grid, last.num_prefix)]
    stage = [layer for layer in stage if layer.cells_look]
    maps = {}
    for depth, layer in enumerate(stage, start=1):
        paths = rollout([one.together[None, None] for one in stage[:depth]])
        share = relevance_map(paths, layer.grid, layer.num_prefix, rows=layer.rows)
        maps[layer.name] = shares(share[0])
    return maps


@dataclass(frozen=True)
class Norms:
    """Lengths of all tokens after every block, and which of them stand out."""

    lengths: dict[str, Float[Tensor, " n"]]
    outliers: dict[str, Bool[Tensor, " n"]]

    def to_json(self) -> dict[str, Any]:
        """By block: all lengths, and the numbers of the tokens that stand out."""
        return {
            block: {"lengths": listed(lengths), "outliers": self.outliers[block].nonzero().flatten().tolist()}
            for block, lengths in self.lengths.items()
        }


@torch.no_grad()
def see_norms(model: Model, image: Float[Tensor, "1 c y x"]) -> Norms:
    with at_rest(model), record(model, what="norms") as trace:
        outputs_of(model, image)
    return Norms(
        {name: lengths[0] for name, lengths in trace.norms.items()},
        {name: outliers(lengths)[0] for name, lengths in trace.norms.items()},
    )
