"""Predictions, and whether a measurement agrees with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any

from vitreous.lab.estimate import Estimate


class Agreement(StrEnum):
    """Whether a measurement agrees with a prediction."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    OPEN = "open"  # the interval crosses the boundary: more seeds are needed


def compare_with_range(estimate: Estimate, low: float, high: float) -> Agreement:
    """Compare an interval with [low, high]: agrees if inside, disagrees if outside, open if it overlaps."""
    if low <= estimate.low and estimate.high <= high:
        return Agreement.AGREES
    return Agreement.DISAGREES if estimate.high < low or estimate.low > high else Agreement.OPEN


@dataclass(frozen=True)
class Near:
    """A value with the tolerance ``within``."""

    value: float
    within: float

    def judge(self, estimate: Estimate) -> Agreement:
        return compare_with_range(estimate, self.value - self.within, self.value + self.within)

    def __str__(self) -> str:
        return f"{format_number(self.value)} ± {format_number(self.within)}"


@dataclass(frozen=True)
class AtLeast:
    """A lower bound."""

    value: float

    def judge(self, estimate: Estimate) -> Agreement:
        return compare_with_range(estimate, self.value, float("inf"))

    def __str__(self) -> str:
        return f"≥ {format_number(self.value)}"


@dataclass(frozen=True)
class AtMost:
    """An upper bound."""

    value: float

    def judge(self, estimate: Estimate) -> Agreement:
        return compare_with_range(estimate, float("-inf"), self.value)

    def __str__(self) -> str:
        return f"≤ {format_number(self.value)}"


Prediction = Near | AtLeast | AtMost


def near(value: float, *, share: float) -> Near:
    """Predict a value with a relative tolerance: ``near(64, share=0.05)`` is 64 ± 3.2."""
    return Near(value, abs(value) * share)


def as_json(prediction: Prediction | None) -> dict[str, Any] | None:
    return None if prediction is None else {"kind": type(prediction).__name__, **vars(prediction)}


def from_json(found: dict[str, Any] | None) -> Prediction | None:
    if found is None:
        return None
    kinds: dict[str, type[Prediction]] = {"Near": Near, "AtLeast": AtLeast, "AtMost": AtMost}
    return kinds[found["kind"]](**{name: value for name, value in found.items() if name != "kind"})


def format_number(value: float) -> str:
    """Format with three significant digits, thousands separators, and powers of ten for very small or large values."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
        return digits.replace("-", "−")
    if not isfinite(value):
        return "∞" if value > 0 else "−∞"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}·10{superscript(int(exponent))}".replace("-", "−")


def superscript(power: int) -> str:
    """Format an integer in superscript digits."""
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
