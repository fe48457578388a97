"""Which layers stand fewer bits: each one's effect on the answer is measured, and the worst get more.

Errors of layers are nearly independent, so their squares add up. The layers whose square weighs most, for the time
that fewer bits would save, go back to more bits until what is left is within the tolerance. Where the answer is read
from a class token, that one has more bits anyway: it is one of many, and the errors of the others average out when it
looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.native.convert import Choice, Range
from vitreous.deploy.native.engine import linear_layers, prepare
from vitreous.deploy.native.linear import Kind

FEW = 2  # images that the effects of single layers are measured with
MARGIN = 0.95  # of the tolerance that the example may use up, since other images move a little more or less


@dataclass(frozen=True)
class Search:
    """A model in the ``fewest`` bits that the tolerance allows, and in ``more`` where it does not."""

    model: nn.Module
    example: Float[Tensor, "b c y x"]
    fewest: Kind
    more: Kind
    tolerance: float
    fine: int = 0  # tokens at the front that the answer is read from
    ranges: Mapping[str, Range] | None = None
    tell: Callable[[str], None] = lambda words: None

    @torch.inference_mode()
    def choice(self) -> Choice:
        """All layers in the fewest bits if that is good enough, and else all but those that cost most."""
        rough = Choice(dict.fromkeys(linear_layers(self.model, self.example[:1]), self.fewest), self.more, self.fine)
        if self.passes(rough):
            return rough
        few = self.example[:FEW]
        work, effects = linear_layers(self.model, few), dict[str, float]()
        for number, name in enumerate(work, 1):
            self.tell(f"error of {self.fewest} in layer {number} of {len(work)}")
            effects[name] = self.error(replace(rough, kinds={name: self.fewest}), few)
        worst_first = sorted(work, key=lambda name: effects[name] ** 2 / work[name], reverse=True)
        back = within_budget([effects[name] for name in worst_first], MARGIN * self.tolerance)
        while True:
            kinds = {name: self.more if name in worst_first[:back] else self.fewest for name in work}
            choice = replace(rough, kinds=kinds)
            if back == len(work) or self.passes(choice):
                return choice
            back = min(len(work), back + max(1, len(work) // 20))

    def passes(self, choice: Choice) -> bool:
        """For the example, and for its first image alone: on average over many errors are smaller."""
        found = self.run(choice, self.example)
        worst = max(relative_error(found[:count], self.expected[:count]) for count in (1, len(found)))
        return worst <= MARGIN * self.tolerance

    def error(self, choice: Choice, images: Float[Tensor, "b c y x"]) -> float:
        """Of the logits; ``images`` are the first of the example."""
        return relative_error(self.run(choice, images), self.expected[: len(images)])

    def run(self, choice: Choice, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        return prepare(self.model, choice, self.ranges)(images)

    @cached_property
    def expected(self) -> Float[Tensor, "b k"]:
        return self.model(self.example)


def relative_error(found: Float[Tensor, "b k"], expected: Float[Tensor, "b k"]) -> float:
    """The length of the difference, in lengths of what was expected; infinite if it is no number."""
    error = float((found - expected).norm() / expected.norm().clamp(min=1e-30))
    return error if error == error else float("inf")


def within_budget(errors: list[float], tolerance: float) -> int:
    """How many must go from the front until the squares of the rest add up to no more than the tolerance's."""
    squares = [error**2 for error in errors]
    return next(count for count in range(len(squares) + 1) if sum(squares[count:]) <= tolerance**2)
