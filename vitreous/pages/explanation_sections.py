"""What an explanation's page shows, from top to bottom: a drawing, how to read it, and what it does not show.

A drawing that does not apply to a model raises a ValueError with the reason, which then stands in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import torch

from vitreous.draw.inline import as_drawing, pixels_tag
from vitreous.draw.maps import depth_figure, heads_figure, methods_figure, points_figure
from vitreous.draw.measures import curves_figure, layers_figure, lens_figure, norms_figure
from vitreous.draw.parameters import filter_figure, position_figure
from vitreous.explain.explanation import Explanation
from vitreous.pages import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """``draw(explanation, key)`` gives HTML; the key tells the names inside it from those of another model's."""

    title: str
    draw: Callable[[Explanation, str], str]
    reading: str
    limits: str


def shown(figure: Figure, name: str, alt: str) -> str:
    """A figure at its own size or smaller; one that would be too small on a phone can be moved sideways there."""
    drawing = html.drawing(as_drawing(figure, name, alt), width=round(100 * figure.get_figwidth()))
    return f'<div class="scroll tall wide">{drawing}</div>'


def draw_answer(explanation: Explanation, key: str) -> str:
    best = explanation.answer.best()
    bars = html.bars([f"{name} {share:.1%}" for name, share in best], [share for _, share in best], chance=0.0)
    explained = f"Explained below: {explanation.answer.target_name} ({explanation.answer.target_probability:.1%})."
    shown = pixels_tag(explanation.image, f"{explanation.title}, as the model sees it")
    return f'<div class="answer">{shown}<div>{bars}<p class="reading">{escape(explained)}</p></div></div>'


def draw_methods(explanation: Explanation, key: str) -> str:
    figure = methods_figure(explanation.image, {name: one.heat for name, one in explanation.methods.items()})
    alt = f"What {', '.join(explanation.methods)} call important for {explanation.answer.target_name}"
    return shown(figure, f"methods{key}", alt)


def draw_trust(explanation: Explanation, key: str) -> str:
    kinds = {"share of cells hidden": "deletion", "share of cells shown": "insertion"}
    figure = curves_figure(
        {
            title: {name: getattr(one, kind) for name, one in explanation.methods.items()}
            for title, kind in kinds.items()
        },
        bands={title: torch.stack([getattr(one, kind) for one in explanation.chance]) for title, kind in kinds.items()},
    )
    rows = []
    for name, one in sorted(explanation.methods.items(), key=lambda item: -item[1].faithfulness):
        better = "better" if explanation.beats_chance(name) else "no better"
        rows.append((name, *(f"{area:.2f}" for area in one.areas), f"{one.faithfulness:+.2f}", better))
    drawn = shown(figure, f"trust{key}", "Deletion and insertion curves of every method")
    columns = ("method", "area, hiding", "area, showing", "faithfulness", "than random")
    return f'<p class="verdict">{escape(verdict(explanation))}</p>{drawn}{html.table(columns, rows)}'


def verdict(explanation: Explanation) -> str:
    """Which explanation to trust for this image, in a sentence or two."""
    limit = f"in 95 of 100 cases {best_of(len(explanation.methods))} stays below {explanation.chance_limit:+.2f}"
    best = explanation.trusted
    if best is None:
        return f"Trust none of these maps here: none is more faithful than chance ({limit})."
    poor = [name for name in explanation.methods if not explanation.beats_chance(name)]
    others = f"No better than chance here: {', '.join(poor)}." if poor else "All of them beat chance here."
    score = explanation.methods[best].faithfulness
    return f"For this image trust {best} most: its faithfulness is {score:+.2f} ({limit}). {others}"


def best_of(number: int) -> str:
    return "a random order" if number == 1 else f"the best of {number} random orders"


def draw_heads(explanation: Explanation, key: str) -> str:
    need_attention(explanation)
    figure = heads_figure({name: layer.heads for name, layer in explanation.layers.items()})
    alt = "Maps of where every head of every layer looks"
    return shown(figure, f"heads{key}", alt) + left_out(explanation)


def draw_rollout(explanation: Explanation, key: str) -> str:
    need_attention(explanation)
    if not explanation.rollout:
        raise ValueError("The cells of this model do not look at each other, so there is nothing to follow back.")
    alt = f"Rollout up to each of {len(explanation.rollout)} layers, over the image"
    return shown(depth_figure(explanation.image, explanation.rollout), f"rollout{key}", alt)


def draw_view(explanation: Explanation, key: str) -> str:
    need_attention(explanation)
    views = {name: layer.view for name, layer in explanation.layers.items() if layer.view is not None}
    if not views:
        raise ValueError("The cells of this model do not look at each other: only its class token looks at them.")
    figure = depth_figure(explanation.image, views, place=explanation.place)
    return shown(figure, f"view{key}", "Where the framed cell looks in every layer")


def draw_points(explanation: Explanation, key: str) -> str:
    seen = {name: layer.points for name, layer in explanation.layers.items() if layer.points is not None}
    if not seen:
        raise ValueError("This model has no deformable attention: it looks at cells, not at points that it moves.")
    figure = points_figure(
        explanation.image,
        {name: one.points for name, one in seen.items()},
        weights={name: one.weights for name, one in seen.items()},
        place=explanation.place,
    )
    return shown(figure, f"points{key}", "The points that deformable attention reads")


def draw_measures(explanation: Explanation, key: str) -> str:
    need_attention(explanation)
    panels = {
        "distance (pixels)": {name: layer.distance for name, layer in explanation.layers.items()},
        "entropy (nats)": {name: layer.entropy for name, layer in explanation.layers.items()},
        "effective rank": {name: layer.rank for name, layer in explanation.layers.items()},
    }
    last = list(explanation.layers.values())[-1]
    tokens = last.num_prefix + math.prod(last.grid)
    note = f"The last layer has {tokens:,} tokens: entropy can be at most {math.log(tokens):.2f}, rank {tokens:,}."
    drawn = shown(layers_figure(panels), f"measures{key}", "Distance, entropy and effective rank by layer")
    return drawn + f'<p class="reading">{note}</p>'


def draw_norms(explanation: Explanation, key: str) -> str:
    norms = explanation.norms
    if norms is None:
        raise ValueError("The lengths of this model's tokens were not measured.")
    found = sum(int(odd.sum()) for odd in norms.outliers.values())
    last = int(list(norms.outliers.values())[-1].sum())
    note = f"{found:,} outliers in all, {last} of them after the last block." if found else "No token stands out."
    drawn = shown(norms_figure(norms.lengths, norms.outliers), f"norms{key}", f"Lengths of tokens. {note}")
    return drawn + f'<p class="reading">{note}</p>'


def draw_lens(explanation: Explanation, key: str) -> str:
    if len(explanation.lens) < 2:
        raise ValueError("Only the last block of this model can be read by its head: earlier ones have other tokens.")
    labels, target = explanation.answer.labels, explanation.answer.target
    best = {name: (labels[int(row.argmax())], float(row.max())) for name, row in explanation.lens.items()}
    share = {name: float(row[target]) for name, row in explanation.lens.items()}
    figure = lens_figure(best, share, target_name=explanation.answer.target_name)
    said = ", ".join(f"{name}: {word} {part:.0%}" for name, (word, part) in best.items())
    return shown(figure, f"lens{key}", f"The answer after each block. {said}")


def draw_positions(explanation: Explanation, key: str) -> str:
    if explanation.positions is None:
        raise ValueError(explanation.reasons["positions"])
    return shown(position_figure(*explanation.positions), f"positions{key}", "Similarity of positions, cell by cell")


def draw_filters(explanation: Explanation, key: str) -> str:
    if explanation.filters is None:
        raise ValueError(explanation.reasons["filters"])
    alt = f"The {len(explanation.filters)} filters of the first layer"
    return shown(filter_figure(explanation.filters), f"filters{key}", alt)


def need_attention(explanation: Explanation) -> None:
    if explanation.layers:
        return
    if "attention" in explanation.reasons:
        raise ValueError("This model has no attention: its cells are mixed by convolutions or pooling.")
    raise ValueError(f"No layer can be laid onto the image: {'; '.join(dict.fromkeys(explanation.reasons.values()))}.")


def left_out(explanation: Explanation) -> str:
    """Which blocks are missing from the drawings of attention, and why."""
    why: dict[str, list[str]] = {}
    for block, reason in explanation.reasons.items():
        if block.startswith("blocks."):
            why.setdefault(reason, []).append(block)
    notes = (f"Left out: {', '.join(blocks)} ({reason})." for reason, blocks in why.items())
    return "".join(f'<p class="reading">{escape(note)}</p>' for note in notes)


SECTIONS = (
    Section(
        "The image and the answer",
        draw_answer,
        "The image after resizing and cropping, as the model gets it, and the five likeliest classes.",
        "How often the model is right when it is as sure as this; evaluate it on labeled images for that.",
    ),
    Section(
        "What it rests on, by method",
        draw_methods,
        "Bright cells are those that a method calls important for the class; every map has a scale of its own.",
        "Whether the method is right. Attention is where information was fetched from, not what decided; occlusion "
        "depends on the gray that hides, and integrated gradients on the gray that they start from.",
    ),
    Section(
        "Which of these maps to trust",
        draw_trust,
        "Left, the cells that a method calls most important are blurred first: the class should be lost at once. "
        "Right, they are the first to be shown on a blurred image: the class should be found at once. Faithfulness "
        "is the right area less the left one, and the gray band is what some random orders of the cells give.",
        "What holds for other images: this is one. A half-blurred image is unlike any that the model has learned "
        "from, which moves all curves, so compare them with the band and not with 0 or 1.",
    ),
    Section(
        "Where every head looks",
        draw_heads,
        "A column is a layer and a row a head; each map is where the tokens look that the classifier reads: the "
        "class token, or all cells. 1 is what a cell would get if all got the same.",
        "What the fetched information was used for, and how much of it was kept: values, MLPs and the residual decide "
        "that. Attention to prefix tokens is not on the maps.",
    ),
    Section(
        "Rollout through depth",
        draw_rollout,
        "Attention followed back to the cells through all layers of the stage up to the one named, heads averaged.",
        "What decided: rollout ignores values and MLPs, takes the residual for one half of every layer, and would be "
        "the same for any other class.",
    ),
    Section(
        "One patch's view",
        draw_view,
        "Where the framed cell looks in every layer, mean over the heads. It is the cell that the most faithful of the "
        "maps above calls most important.",
        "What the cell makes of it; and other cells may look quite differently.",
    ),
    Section(
        "Points that it reads",
        draw_points,
        "The points of the image that are read, by layer: a color for each group of heads, the larger the more "
        "weight, as seen from the cell with the cross.",
        "What was found there, and where the points would lie in another image.",
    ),
    Section(
        "Measures by layer",
        draw_measures,
        "Distance is how far from a cell the cells lie that it looks at. Entropy is 0 for looking at one token and "
        "highest for looking at all alike. Effective rank is 1 if all tokens look the same way, and grows as they "
        "differ.",
        "Whether a layer does well: near or far, sharp or broad may each be what its task needs.",
    ),
    Section(
        "Lengths of tokens",
        draw_norms,
        "The length of the tokens after every block. Outliers, longer than three times the median, often keep notes "
        "about the whole image in place of their own cell.",
        "Importance: a long token need not be one that is looked at, and the next normalization takes its length away.",
    ),
    Section(
        "What it would say if it stopped here",
        draw_lens,
        "The model's answer if all later blocks passed on what they are given; the best class is written where it "
        "changes.",
        "What the early layers know: the head has learned to read the last block alone and may misread the others.",
    ),
    Section(
        "Positions",
        draw_positions,
        "Every small map compares the position of one cell, at whose place it stands, with those of all cells: where "
        "neighbors are alike, the model knows what is near. It is the same for all images.",
        "What attention makes of positions, and positions that are not added to the tokens.",
    ),
    Section(
        "First filters",
        draw_filters,
        "What the first layer can see of the pixels: gray is zero. Of many filters the main directions in which they "
        "differ are shown (principal components), the strongest first. It is the same for all images.",
        "How much each of them is used in this image.",
    ),
)
