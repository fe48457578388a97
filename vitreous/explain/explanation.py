"""A portrait: everything that can be shown about one model's answer for one picture.

portrait = vt.portrait(model, "photo.jpg")
portrait.answer.best(), portrait.trusted
portrait.save("explain.html")
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explain.display import display
from vitreous.explain.faithfulness import auc
from vitreous.explain.layers import LayerSeen, Norms
from vitreous.explain.maps import Place
from vitreous.layers.position import Grid
from vitreous.spec import Labels

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
        shares, numbers = self.probabilities.topk(min(count, len(self.probabilities)))
        return [(self.labels[number], share) for number, share in zip(numbers.tolist(), shares.tolist(), strict=True)]


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


@dataclass(frozen=True, repr=False)
class Portrait:
    """Evidence about one answer. What a model does not have is empty, and ``reasons`` say why."""

    model: str
    picture: str
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

    def save(self, path: str | os.PathLike[str], *, beside: Portrait | None = None) -> None:
        """Write one page that needs nothing but itself; ``beside`` is another model's portrait of the same picture."""
        display("page", Path(path), [self] if beside is None else [self, beside])

    def _repr_html_(self) -> str:
        """In a notebook the maps show themselves."""
        return str(display("explanation", self))

    def __repr__(self) -> str:
        name, share = self.answer.best(1)[0]
        return f"Portrait of {self.model} with {self.picture}: {name} {share:.1%}, trust {self.trusted or 'no map'}"
