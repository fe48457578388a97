"""The sections of an explanation's page: a figure, how to read it, and its limits.

A figure that does not apply to a model raises a ValueError; the page then shows the reason in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import torch

from vitreous.draw.inline import inline_svg, pixels_tag
from vitreous.draw.maps import depth_figure, heads_figure, methods_figure, points_figure
from vitreous.draw.measures import curves_figure, layers_figure, lens_figure, norms_figure
from vitreous.draw.parameters import filter_figure, position_figure
from vitreous.explain.explanation import Explanation
from vitreous.pages import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """``draw(explanation, key)`` returns HTML; the key makes element ids unique where a page shows two models."""

    title: str
    draw: Callable[[Explanation, str], str]
    reading: str
    limits: str


def shown(figure: Figure, name: str, alt: str) -> str:
    """Embed a figure at its own size or smaller, with horizontal scrolling on narrow screens."""
    drawing = html.drawing(inline_svg(figure, name, alt), width=round(100 * figure.get_figwidth()))
    return f'<div class="scroll tall wide">{drawing}</div>'


def draw_answer(explanation: Explanation, key: str) -> str:
    best = explanation.answer.best()
    bars = html.bars([f"{name} {share:.1%}" for name, share in best], [share for _, share in best], chance=0.0)
    explained = f"Explained below: {explanation.answer.target_name} ({explanation.answer.target_probability:.1%})."
    image = pixels_tag(explanation.image, f"{explanation.title}, resized and cropped to the model's input")
    return f'<div class="answer">{image}<div>{bars}<p class="reading">{escape(explained)}</p></div></div>'


def draw_methods(explanation: Explanation, key: str) -> str:
    figure = methods_figure(explanation.image, {name: one.heat for name, one in explanation.methods.items()})
    alt = f"Attribution maps of {', '.join(explanation.methods)} for {explanation.answer.target_name}"
    return shown(figure, f"methods{key}", alt)


def draw_faithfulness(explanation: Explanation, key: str) -> str:
    kinds = {"fraction of cells hidden (deletion)": "deletion", "fraction of cells shown (insertion)": "insertion"}
    figure = curves_figure(
        {
            title: {name: getattr(one, kind) for name, one in explanation.methods.items()}
            for title, kind in kinds.items()
        },
        bands={title: torch.stack([getattr(one, kind) for one in explanation.chance]) for title, kind in kinds.items()},
    )
    rows = []
    for name, one in sorted(explanation.methods.items(), key=lambda item: -item[1].faithfulness):
        better = "yes" if explanation.beats_chance(name) else "no"
        rows.append((name, *(f"{area:.2f}" for area in one.areas), f"{one.faithfulness:+.2f}", better))
    drawn = shown(figure, f"faithfulness{key}", "Deletion and insertion curves of every method")
    columns = ("method", "deletion area ↓", "insertion area ↑", "faithfulness ↑", "better than random")
    return f'<p class="verdict">{escape(verdict(explanation))}</p>{drawn}{html.table(columns, rows)}'


def verdict(explanation: Explanation) -> str:
    """Report in a sentence or two which map is the most faithful for this image."""
    limit = f"95 % limit of {best_of(len(explanation.methods))}: {explanation.chance_limit:+.2f}"
    best = explanation.trusted
    if best is None:
        return f"None of these maps is more faithful than a random map ({limit})."
    poor = [name for name in explanation.methods if not explanation.beats_chance(name)]
    others = f"No better than random: {', '.join(poor)}." if poor else "All methods are better than random."
    score = explanation.methods[best].faithfulness
    return f"The most faithful map of this image is {best}: {score:+.2f} ({limit}). {others}"


def best_of(number: int) -> str:
    return "a random map" if number == 1 else f"the best of {number} random maps"


def draw_heads(explanation: Explanation, key: str) -> str:
    require_attention(explanation)
    figure = heads_figure({name: layer.heads for name, layer in explanation.layers.items()})
    alt = "Attention maps of every head of every layer"
    return shown(figure, f"heads{key}", alt) + missing_blocks(explanation)


def draw_rollout(explanation: Explanation, key: str) -> str:
    require_attention(explanation)
    if not explanation.rollout:
        raise ValueError("This model has no attention between cells, so there is no rollout.")
    alt = f"Attention rollout up to each of {len(explanation.rollout)} layers, over the image"
    return shown(depth_figure(explanation.image, explanation.rollout), f"rollout{key}", alt)


def draw_view(explanation: Explanation, key: str) -> str:
    require_attention(explanation)
    views = {name: layer.view for name, layer in explanation.layers.items() if layer.view is not None}
    if not views:
        raise ValueError("This model has no attention between cells, only from the class token to the cells.")
    figure = depth_figure(explanation.image, views, place=explanation.place)
    return shown(figure, f"view{key}", "Attention of the framed cell in every layer")


def draw_points(explanation: Explanation, key: str) -> str:
    points = {name: layer.points for name, layer in explanation.layers.items() if layer.points is not None}
    if not points:
        raise ValueError("This model has no deformable attention with sampling points.")
    figure = points_figure(
        explanation.image,
        {name: one.points for name, one in points.items()},
        weights={name: one.weights for name, one in points.items()},
        place=explanation.place,
    )
    return shown(figure, f"points{key}", "Sampling points of deformable attention")


def draw_measures(explanation: Explanation, key: str) -> str:
    require_attention(explanation)
    panels = {
        "attention distance (pixels)": {name: layer.distance for name, layer in explanation.layers.items()},
        "entropy (nats)": {name: layer.entropy for name, layer in explanation.layers.items()},
        "effective rank": {name: layer.rank for name, layer in explanation.layers.items()},
    }
    last = list(explanation.layers.values())[-1]
    tokens = last.num_prefix + math.prod(last.grid)
    note = f"The last layer has {tokens:,} tokens: entropy is at most {math.log(tokens):.2f}, rank at most {tokens:,}."
    drawn = shown(layers_figure(panels), f"measures{key}", "Attention distance, entropy and effective rank by layer")
    return drawn + f'<p class="reading">{note}</p>'


def draw_norms(explanation: Explanation, key: str) -> str:
    norms = explanation.norms
    if norms is None:
        raise ValueError("The token norms of this model were not measured.")
    total = sum(int(marked.sum()) for marked in norms.outliers.values())
    last = int(list(norms.outliers.values())[-1].sum())
    note = f"{total:,} outliers in all blocks, {last} after the last block." if total else "No outliers."
    drawn = shown(norms_figure(norms.lengths, norms.outliers), f"norms{key}", f"Token norms. {note}")
    return drawn + f'<p class="reading">{note}</p>'


def draw_lens(explanation: Explanation, key: str) -> str:
    if len(explanation.lens) < 2:
        raise ValueError("The logit lens needs several blocks on the last grid; this model has only one.")
    labels, target = explanation.answer.labels, explanation.answer.target
    best = {name: (labels[int(row.argmax())], float(row.max())) for name, row in explanation.lens.items()}
    probabilities = {name: float(row[target]) for name, row in explanation.lens.items()}
    figure = lens_figure(best, probabilities, target_name=explanation.answer.target_name)
    listed = ", ".join(f"{name}: {label} {probability:.0%}" for name, (label, probability) in best.items())
    return shown(figure, f"lens{key}", f"Top class after each block. {listed}")


def draw_positions(explanation: Explanation, key: str) -> str:
    if explanation.positions is None:
        raise ValueError(explanation.reasons["positions"])
    figure = position_figure(*explanation.positions)
    return shown(figure, f"positions{key}", "Cosine similarity of position embeddings by cell")


def draw_filters(explanation: Explanation, key: str) -> str:
    if explanation.filters is None:
        raise ValueError(explanation.reasons["filters"])
    alt = f"The {len(explanation.filters)} filters of the first layer"
    return shown(filter_figure(explanation.filters), f"filters{key}", alt)


def require_attention(explanation: Explanation) -> None:
    if explanation.layers:
        return
    if "attention" in explanation.reasons:
        raise ValueError("This model has no attention; its tokens are mixed by convolution or pooling.")
    reasons = "; ".join(dict.fromkeys(explanation.reasons.values()))
    raise ValueError(f"No layer has attention maps of the image: {reasons}.")


def missing_blocks(explanation: Explanation) -> str:
    """List the blocks that are missing from the attention figures, with the reasons."""
    why: dict[str, list[str]] = {}
    for block, reason in explanation.reasons.items():
        if block.startswith("blocks."):
            why.setdefault(reason, []).append(block)
    notes = (f"Not shown: {', '.join(blocks)} ({reason})." for reason, blocks in why.items())
    return "".join(f'<p class="reading">{escape(note)}</p>' for note in notes)


SECTIONS = (
    Section(
        "Image and prediction",
        draw_answer,
        "The image resized and cropped to the model's input, and the five most probable classes.",
        "A probability is not an accuracy: evaluate the model on labeled images to measure its calibration.",
    ),
    Section(
        "Attribution maps",
        draw_methods,
        "Bright cells are important for the class according to each method. Every map has a separate color scale.",
        "A map need not be right. Attention shows where information is read from, not what decides the prediction; "
        "occlusion and integrated gradients depend on their gray baseline.",
    ),
    Section(
        "Deletion and insertion",
        draw_faithfulness,
        "Deletion (left): cells are blurred, the most important first, and the probability should fall at once. "
        "Insertion (right): cells are revealed on a blurred image, the most important first, and it should rise at "
        "once. Faithfulness is the area under the insertion curve minus the area under the deletion curve. The gray "
        "band is the range of random maps.",
        "The result holds for this image only. A half-blurred image is unlike the training data, which shifts all "
        "curves, so compare them with the band and not with 0 or 1.",
    ),
    Section(
        "Attention maps by head",
        draw_heads,
        "Columns are layers, rows are heads. Each map is the attention of the tokens that the classifier reads: the "
        "class token, or the mean over all cells. 1 is uniform attention.",
        "Maps do not show what the information is used for, nor how much of it is kept, which depends on values, MLPs "
        "and the residual stream. Attention to prefix tokens is not shown.",
    ),
    Section(
        "Attention rollout",
        draw_rollout,
        "The product of ½ (A + I) over all layers of the stage up to the one named, with A the attention matrix "
        "averaged over heads: how much each cell can contribute to the tokens that the classifier reads.",
        "Rollout ignores values and MLPs, weights the residual connection and attention equally, and is the same for "
        "every class.",
    ),
    Section(
        "Attention of one patch",
        draw_view,
        "The attention of the framed cell in every layer, averaged over heads. It is the most important cell of the "
        "most faithful attribution map.",
        "Other cells may attend quite differently.",
    ),
    Section(
        "Deformable sampling points",
        draw_points,
        "The points that the cell with the cross samples in each layer: one color per group of heads, the larger the "
        "higher the attention weight.",
        "The points depend on the image.",
    ),
    Section(
        "Attention distance, entropy and rank",
        draw_measures,
        "Distance is the mean distance from a cell to the cells it attends to. Entropy is 0 for attention to a single "
        "token and highest for uniform attention. Effective rank is 1 if all tokens attend alike, and grows as their "
        "attention differs.",
        "None of these is good or bad as such: local or global, sharp or broad attention may each suit the task.",
    ),
    Section(
        "Token norms",
        draw_norms,
        "The L2 norm of the tokens after every block. Outliers, above three times the median, often store global "
        "information in place of that of their cell (see registers).",
        "A high norm does not mean that a token is important: the next normalization removes it.",
    ),
    Section(
        "Logit lens",
        draw_lens,
        "The prediction if all later blocks were the identity: the final norm and head applied to the output of each "
        "block. The top class is labeled where it changes.",
        "Early layers may hold more information than this: the head was trained on the last block only.",
    ),
    Section(
        "Position embedding similarity",
        draw_positions,
        "Each small map shows the cosine similarity of one cell's position embedding with those of all cells. Similar "
        "neighbors mean that the model has learned the grid. It is the same for all images.",
        "Relative positions and other positions inside the attention are not included.",
    ),
    Section(
        "First-layer filters",
        draw_filters,
        "The filters of the first layer; gray is zero. Of many filters the leading principal components are shown. "
        "They are the same for all images.",
        "The figure does not show how strongly each filter responds to this image.",
    ),
)
