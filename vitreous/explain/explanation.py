"""The evidence for one prediction: attribution maps, attention by layer, logit lens, token norms and weights.

explanation = vt.explain(model, "photo.jpg")
explanation.answer.best(), explanation.trusted
explanation.save("explain.html")
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explain.evidence import LayerEvidence, TokenNorms
from vitreous.explain.faithfulness import auc
from vitreous.explain.maps import RelativePoint
from vitreous.explain.plain_numbers import round_significant, to_json_list
from vitreous.explain.rendering import render
from vitreous.layers.position import Grid
from vitreous.spec import Labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERSION = 1  # of the format of to_json
RANDOM_ORDERS = 8
#: One-sided quantiles of Student's t, 7 degrees of freedom (8 random orders), at 5 % / 1, 2, … 6 methods (Bonferroni).
STUDENT_T = (1.895, 2.365, 2.642, 2.841, 2.998, 3.128)


@dataclass(frozen=True)
class Answer:
    """The predicted probabilities of all classes, and the index of the explained class (``target``)."""

    labels: Labels
    probabilities: Float[Tensor, " k"]
    target: int

    @property
    def target_name(self) -> str:
        return self.labels[self.target]

    @property
    def target_probability(self) -> float:
        return float(self.probabilities[self.target])

    def best(self, count: int = 5) -> list[tuple[str, float]]:
        """The ``count`` most probable classes with their probabilities, in falling order."""
        return [(self.labels[index], float(self.probabilities[index])) for index in self.top_indices(count)]

    def top_indices(self, count: int) -> list[int]:
        return self.probabilities.topk(min(count, len(self.probabilities))).indices.tolist()

    def to_json(self) -> dict[str, Any]:
        """Return the explained class, the top five, and the probabilities of all classes in order."""
        return self.summary() | {"probabilities": to_json_list(self.probabilities)}

    def summary(self) -> dict[str, Any]:
        """Return the explained class and the top five."""
        target, *best = (
            {
                "class": index,
                "name": self.labels[index],
                "probability": round_significant(float(self.probabilities[index])),
            }
            for index in (self.target, *self.top_indices(5))
        )
        return {"target": target, "best": best}


@dataclass(frozen=True)
class MethodResult:
    """One method's attribution map, on the cells of its evaluation, and its deletion and insertion curves."""

    heat: Float[Tensor, "y x"]
    deletion: Float[Tensor, " steps"]
    insertion: Float[Tensor, " steps"]

    @property
    def areas(self) -> tuple[float, float]:
        """Areas under the deletion curve (lower is better) and the insertion curve (higher is better)."""
        return float(auc(self.deletion[None])), float(auc(self.insertion[None]))

    @property
    def faithfulness(self) -> float:
        """Area under the insertion curve minus area under the deletion curve."""
        deletion, insertion = self.areas
        return insertion - deletion

    def to_json(self) -> dict[str, Any]:
        deletion, insertion = self.areas
        return {
            "map": to_json_list(self.heat),
            "deletion": to_json_list(self.deletion),
            "insertion": to_json_list(self.insertion),
            "deletion_area": round_significant(deletion),
            "insertion_area": round_significant(insertion),
            "faithfulness": round_significant(self.faithfulness),
        }


@dataclass(frozen=True, repr=False)
class Explanation:
    """The evidence for one prediction, as returned by :func:`vitreous.explain`; prints itself in notebooks.

    Evidence that does not apply to a model is empty or None, and ``reasons`` explains why.

    Example::

        explanation = vt.explain(model, "photo.jpg")
        explanation.answer.best()  # [("tabby", 0.93), …]
        explanation.trusted  # the most faithful method, if it beats random maps
        explanation.draw().savefig("maps.png")
        explanation.save("explain.html")
    """

    model: str
    title: str  # file name of the image
    image: UInt8[Tensor, "c y x"]  # resized and cropped to the model's input
    answer: Answer
    methods: dict[str, MethodResult]
    chance: tuple[MethodResult, ...]  # random maps
    place: RelativePoint  # center of the most important cell, whose attention is in layers[…].view
    layers: dict[str, LayerEvidence] = field(default_factory=dict)
    rollout: dict[str, Float[Tensor, "y x"]] = field(default_factory=dict)  # up to each block, relative to uniform
    norms: TokenNorms | None = None
    lens: dict[str, Float[Tensor, " k"]] = field(default_factory=dict)  # probabilities by block
    positions: tuple[Float[Tensor, "n d"], Grid] | None = None
    filters: Float[Tensor, "d c p q"] | None = None
    reasons: dict[str, str] = field(default_factory=dict)  # missing evidence or block → reason

    @property
    def chance_limit(self) -> float:
        """95 % limit of the best faithfulness among as many random maps as there are methods.

        The one-sided prediction limit of Student's t for a further random map, with Bonferroni correction.
        """
        scores = torch.tensor([order.faithfulness for order in self.chance])
        student = STUDENT_T[min(len(self.methods), len(STUDENT_T)) - 1]
        return float(scores.mean() + student * scores.std() * math.sqrt(1 + 1 / len(scores)))

    @property
    def trusted(self) -> str | None:
        """The most faithful method, or None if it does not beat random maps."""
        best = max(self.methods, key=lambda name: self.methods[name].faithfulness, default=None)
        return best if best is not None and self.beats_chance(best) else None

    def beats_chance(self, method: str) -> bool:
        """Whether the faithfulness of a method exceeds ``chance_limit``."""
        return self.methods[method].faithfulness > self.chance_limit

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as JSON-serializable data, numbers rounded to four significant digits.

        Keys are the names of the fields. Pixels, and evidence that is the same for every image (position embeddings,
        filters), are left out.
        """
        return {
            "version": VERSION,
            "model": self.model,
            "image": self.title,
            "image_size": list(self.image.shape[1:]),
            "answer": self.answer.to_json(),
            "grid": list(self.chance[0].heat.shape),
            "methods": {
                name: one.to_json() | {"beats_chance": self.beats_chance(name)} for name, one in self.methods.items()
            },
            "chance": {
                "faithfulness": [round_significant(order.faithfulness) for order in self.chance],
                "limit": round_significant(self.chance_limit),
            },
            "trusted": self.trusted,
            "place": [round_significant(part) for part in self.place],
            "layers": {block: layer.to_json() for block, layer in self.layers.items()},
            "rollout": {block: to_json_list(heat) for block, heat in self.rollout.items()},
            "norms": {} if self.norms is None else self.norms.to_json(),
            "lens": {block: replace(self.answer, probabilities=row).summary() for block, row in self.lens.items()},
            "reasons": dict(self.reasons),
        }

    def save(self, path: str | os.PathLike[str], *, beside: Explanation | None = None) -> None:
        """Write a self-contained HTML page.

        Args:
            path: The file to write.
            beside: Another model's explanation of the same image, shown side by side.
        """
        render("page", Path(path), [self] if beside is None else [self, beside])

    def draw(self) -> Figure:
        """Draw the attribution map of every method over the image, as a Matplotlib figure."""
        figure: Figure = render("explanation figure", self)
        return figure

    def _repr_html_(self) -> str:
        """HTML for notebooks: the attribution maps as a figure."""
        return str(render("explanation", self))

    def __repr__(self) -> str:
        name, share = self.answer.best(1)[0]
        trusted = self.trusted or "none"
        return f"Explanation of {self.model} for {self.title}: {name} {share:.1%}, most faithful method: {trusted}"
