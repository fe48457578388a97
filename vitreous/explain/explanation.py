"""An explanation: everything that can be shown about one model's answer for one image.

explanation = vt.explain(model, "photo.jpg")
explanation.answer.best(), explanation.trusted
explanation.save("explain.html")
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explain.display import display
from vitreous.explain.faithfulness import auc
from vitreous.explain.layers import LayerSeen, Norms
from vitreous.explain.maps import Place
from vitreous.explain.plain_numbers import listed, rounded
from vitreous.layers.position import Grid
from vitreous.spec import Labels

VERSION = 1  # of what to_json gives
RANDOM_ORDERS = 8
#: Student's t on one side with seven degrees of freedom, eight random orders, at 5 % divided by 1, 2, … 6 methods.
STUDENT = (1.895, 2.365, 2.642, 2.841, 2.998, 3.128)


@dataclass(frozen=True)
class Answer:
    """Probabilities of all classes, and the number of the class that is explained."""

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
        """The likeliest classes, likeliest first."""
        return [(self.labels[number], float(self.probabilities[number])) for number in self.likeliest(count)]

    def likeliest(self, count: int) -> list[int]:
        return self.probabilities.topk(min(count, len(self.probabilities))).indices.tolist()

    def to_json(self) -> dict[str, Any]:
        """The class that is explained, the five likeliest, and the probabilities of all classes in their order."""
        return self.summary() | {"probabilities": listed(self.probabilities)}

    def summary(self) -> dict[str, Any]:
        """The class that is explained and the five likeliest, as plain numbers."""
        target, *best = (
            {"class": number, "name": self.labels[number], "probability": rounded(float(self.probabilities[number]))}
            for number in (self.target, *self.likeliest(5))
        )
        return {"target": target, "best": best}


@dataclass(frozen=True)
class Explained:
    """A method's map on the cells by which it is judged, and the target's probability while they go or come."""

    heat: Float[Tensor, "y x"]
    deletion: Float[Tensor, " steps"]
    insertion: Float[Tensor, " steps"]

    @property
    def areas(self) -> tuple[float, float]:
        """Under deletion, which should be small, and under insertion, which should be large."""
        return float(auc(self.deletion[None])), float(auc(self.insertion[None]))

    @property
    def faithfulness(self) -> float:
        """How far the area under insertion is the larger."""
        falling, rising = self.areas
        return rising - falling

    def to_json(self) -> dict[str, Any]:
        falling, rising = self.areas
        return {
            "map": listed(self.heat),
            "deletion": listed(self.deletion),
            "insertion": listed(self.insertion),
            "deletion_area": rounded(falling),
            "insertion_area": rounded(rising),
            "faithfulness": rounded(self.faithfulness),
        }


@dataclass(frozen=True, repr=False)
class Explanation:
    """Evidence about one answer. What a model does not have is empty, and ``reasons`` say why."""

    model: str
    title: str  # of the image: its file's name
    image: UInt8[Tensor, "c y x"]  # as the model sees it: resized and cropped
    answer: Answer
    methods: dict[str, Explained]
    chance: tuple[Explained, ...]  # what random orders give
    place: Place  # the most important cell: whose view is shown
    layers: dict[str, LayerSeen] = field(default_factory=dict)
    rollout: dict[str, Float[Tensor, "y x"]] = field(default_factory=dict)  # by depth, in even shares
    norms: Norms | None = None
    lens: dict[str, Float[Tensor, " k"]] = field(default_factory=dict)  # probabilities by block
    positions: tuple[Float[Tensor, "n d"], Grid] | None = None
    filters: Float[Tensor, "d c p q"] | None = None
    reasons: dict[str, str] = field(default_factory=dict)  # what is missing, or the block that is → why

    @property
    def chance_limit(self) -> float:
        """What the best of as many random orders as there are methods stays below in 95 of 100 cases.

        Student's limit for one more order, reckoned from those that were tried, at 5 % divided by the methods.
        """
        scores = torch.tensor([order.faithfulness for order in self.chance])
        student = STUDENT[min(len(self.methods), len(STUDENT)) - 1]
        return float(scores.mean() + student * scores.std() * math.sqrt(1 + 1 / len(scores)))

    @property
    def trusted(self) -> str | None:
        """The most faithful method, if it beats chance."""
        best = max(self.methods, key=lambda name: self.methods[name].faithfulness, default=None)
        return best if best is not None and self.beats_chance(best) else None

    def beats_chance(self, method: str) -> bool:
        return self.methods[method].faithfulness > self.chance_limit

    def to_json(self) -> dict[str, Any]:
        """The evidence as plain numbers with four significant digits, under the names of the fields.

        Pixels and what is the same for every image (positions, filters) are left out.
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
                "faithfulness": [rounded(order.faithfulness) for order in self.chance],
                "limit": rounded(self.chance_limit),
            },
            "trusted": self.trusted,
            "place": [rounded(part) for part in self.place],
            "layers": {block: layer.to_json() for block, layer in self.layers.items()},
            "rollout": {block: listed(heat) for block, heat in self.rollout.items()},
            "norms": {} if self.norms is None else self.norms.to_json(),
            "lens": {block: replace(self.answer, probabilities=row).summary() for block, row in self.lens.items()},
            "reasons": dict(self.reasons),
        }

    def save(self, path: str | os.PathLike[str], *, beside: Explanation | None = None) -> None:
        """Write one page that needs nothing but itself; ``beside`` is another model's explanation of the same image."""
        display("page", Path(path), [self] if beside is None else [self, beside])

    def _repr_html_(self) -> str:
        """In a notebook the maps show themselves."""
        return str(display("explanation", self))

    def __repr__(self) -> str:
        name, share = self.answer.best(1)[0]
        return f"Explanation of {self.model} with {self.title}: {name} {share:.1%}, trust {self.trusted or 'no map'}"
