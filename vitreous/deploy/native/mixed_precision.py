"""Mixed-precision search: run every layer in the low precision except those that cost most accuracy.

Layer errors are nearly independent, so their squares add up. Layers are ranked by squared error per multiplication
saved, and the worst run in the higher precision until the remaining error is within the tolerance. Where the head reads
a class token, that token keeps more bits in any case: attention averages out the rounding errors of the other tokens,
but not its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.engine import Precision, ProgressCallback
from vitreous.deploy.native.convert import PrecisionPlan, Range
from vitreous.deploy.native.engine import linear_layers, to_native

PROBE_IMAGES = 2  # on which the error of each single layer is measured
MARGIN = 0.95  # share of the tolerance that the example may use, since other images differ a little


@dataclass(frozen=True)
class PlanSearch:
    """Search for a plan with as many layers in ``low`` precision as the tolerance allows; the others run in ``high``.

    ``tolerance`` bounds the error of the logits on ``example``, relative to their norm. ``precise_tokens`` and
    ``ranges`` are as in :class:`PrecisionPlan` and :func:`to_native`.
    """

    model: nn.Module
    example: Float[Tensor, "b c y x"]
    low: Precision
    high: Precision
    tolerance: float
    precise_tokens: int = 0
    ranges: Mapping[str, Range] | None = None
    progress: ProgressCallback = lambda message: None

    @torch.inference_mode()
    def run(self) -> PrecisionPlan:
        """Return a plan with all layers in ``low`` if that is accurate enough, else without the most sensitive ones."""
        layers = linear_layers(self.model, self.example[:1])
        all_low = PrecisionPlan(dict.fromkeys(layers, self.low), self.high, self.precise_tokens)
        if self.passes(all_low):
            return all_low
        probe = self.example[:PROBE_IMAGES]
        work, errors = linear_layers(self.model, probe), dict[str, float]()
        for number, name in enumerate(work, 1):
            self.progress(f"error of {self.low} in layer {number} of {len(work)}")
            errors[name] = self.error(replace(all_low, precisions={name: self.low}), probe)
        worst_first = sorted(work, key=lambda name: errors[name] ** 2 / work[name], reverse=True)
        num_high = within_budget([errors[name] for name in worst_first], MARGIN * self.tolerance)
        while True:
            precisions = {name: self.high if name in worst_first[:num_high] else self.low for name in work}
            plan = replace(all_low, precisions=precisions)
            if num_high == len(work) or self.passes(plan):
                return plan
            num_high = min(len(work), num_high + max(1, len(work) // 20))

    def passes(self, plan: PrecisionPlan) -> bool:
        """Check the example, and its first image alone: averaged over a batch the error is smaller."""
        logits = self.logits(plan, self.example)
        worst = max(relative_error(logits[:count], self.expected[:count]) for count in (1, len(logits)))
        return worst <= MARGIN * self.tolerance

    def error(self, plan: PrecisionPlan, images: Float[Tensor, "b c y x"]) -> float:
        """Return the error of the logits; ``images`` are the first ones of the example."""
        return relative_error(self.logits(plan, images), self.expected[: len(images)])

    def logits(self, plan: PrecisionPlan, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        return to_native(self.model, plan, self.ranges)(images)

    @cached_property
    def expected(self) -> Float[Tensor, "b k"]:
        return self.model(self.example)


def relative_error(found: Float[Tensor, "b k"], expected: Float[Tensor, "b k"]) -> float:
    """Compute ‖found − expected‖ / ‖expected‖ over the batch; infinite for NaN."""
    error = float((found - expected).norm() / expected.norm().clamp(min=1e-30))
    return error if error == error else float("inf")


def within_budget(errors: list[float], tolerance: float) -> int:
    """Return how many leading errors must be dropped so that the rest, added in quadrature, stay within tolerance."""
    squares = [error**2 for error in errors]
    return next(count for count in range(len(squares) + 1) if sum(squares[count:]) <= tolerance**2)
