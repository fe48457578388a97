"""Which layers stand fewer bits: each one's effect on the answer is measured, and the worst get more.

Errors of layers are nearly independent, so their squares add up. The layers whose square weighs most, for the time
that fewer bits would save, go back to more bits until what is left is within the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.native.engine import Range, linear_layers, prepare
from vitreous.deploy.native.linear import Kind

FEW = 2  # pictures that the effects of single layers are measured with
MARGIN = 0.95  # of the tolerance that the example may use up, since other pictures move a little more or less


@dataclass(frozen=True)
class Choice:
    """What every layer runs in, with the error of the logits when it alone runs in the fewest bits."""

    kinds: dict[str, Kind]
    effects: dict[str, float]

    def count(self, kind: Kind) -> int:
        return list(self.kinds.values()).count(kind)


def relative_error(found: Float[Tensor, "b k"], expected: Float[Tensor, "b k"]) -> float:
    """The length of the difference, in lengths of what was expected; infinite if it is no number."""
    error = float((found - expected).norm() / expected.norm().clamp(min=1e-30))
    return error if error == error else float("inf")


@torch.inference_mode()
def choose(
    model: nn.Module,
    example: Tensor,
    fewest: Kind,
    more: Kind,
    tolerance: float,
    ranges: Mapping[str, Range] | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Choice:
    """As many layers in the ``fewest`` bits as the tolerance allows, the others in ``more``."""
    few, allowed = example[:FEW], MARGIN * tolerance
    expected = model(example)
    work = linear_layers(model, few)

    def error(kinds: dict[str, Kind], images: Tensor = example) -> float:
        return relative_error(prepare(model, kinds, ranges)(images), expected[: len(images)])

    if error(dict.fromkeys(work, fewest)) <= allowed:
        return Choice(dict.fromkeys(work, fewest), {})
    effects = {}
    for number, name in enumerate(work, 1):
        tell(f"error of {fewest} in layer {number} of {len(work)}")
        effects[name] = error({name: fewest}, few)
    worst_first = sorted(work, key=lambda name: effects[name] ** 2 / work[name], reverse=True)
    back = within_budget([effects[name] for name in worst_first], allowed)
    while True:
        kinds = {name: more if name in worst_first[:back] else fewest for name in work}
        if back == len(work) or error(kinds) <= allowed:
            return Choice(kinds, effects)
        back = min(len(work), back + max(1, len(work) // 20))


def within_budget(errors: list[float], tolerance: float) -> int:
    """How many must go from the front until the squares of the rest add up to no more than the tolerance's."""
    squares = [error**2 for error in errors]
    return next(count for count in range(len(squares) + 1) if sum(squares[count:]) <= tolerance**2)
