"""What a formula says a measurement will be, and whether the measurement agrees."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any

from vitreous.lab.estimate import Estimate


class Agreement(StrEnum):
    AGREES = "agrees"
    DISAGREES = "disagrees"
    OPEN = "open"  # the interval reaches over the border: more seeds would tell


def between(estimate: Estimate, low: float, high: float) -> Agreement:
    """Agrees when the whole interval lies inside, disagrees when all of it lies outside."""
    if low <= estimate.low and estimate.high <= high:
        return Agreement.AGREES
    return Agreement.DISAGREES if estimate.high < low or estimate.low > high else Agreement.OPEN


@dataclass(frozen=True)
class Near:
    """The value itself, give or take ``within``: the accuracy at which the formula is put to the test."""

    value: float
    within: float

    def judge(self, estimate: Estimate) -> Agreement:
        return between(estimate, self.value - self.within, self.value + self.within)

    def __str__(self) -> str:
        return f"{number(self.value)} ± {number(self.within)}"


@dataclass(frozen=True)
class AtLeast:
    value: float

    def judge(self, estimate: Estimate) -> Agreement:
        return between(estimate, self.value, float("inf"))

    def __str__(self) -> str:
        return f"≥ {number(self.value)}"


@dataclass(frozen=True)
class AtMost:
    value: float

    def judge(self, estimate: Estimate) -> Agreement:
        return between(estimate, float("-inf"), self.value)

    def __str__(self) -> str:
        return f"≤ {number(self.value)}"


Prediction = Near | AtLeast | AtMost


def near(value: float, *, share: float) -> Near:
    """A value to within a share of itself: ``near(64, share=0.05)`` is 64 ± 3.2."""
    return Near(value, abs(value) * share)


def as_json(prediction: Prediction | None) -> dict[str, Any] | None:
    return None if prediction is None else {"kind": type(prediction).__name__, **vars(prediction)}


def from_json(found: dict[str, Any] | None) -> Prediction | None:
    if found is None:
        return None
    kinds: dict[str, type[Prediction]] = {"Near": Near, "AtLeast": AtLeast, "AtMost": AtMost}
    return kinds[found["kind"]](**{name: value for name, value in found.items() if name != "kind"})


def number(value: float) -> str:
    """Three digits that count, thousands with commas; very small and very large ones as powers of ten."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
        return digits.replace("-", "−")
    if not isfinite(value):
        return "∞" if value > 0 else "−∞"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}·10{exponent_of(int(exponent))}".replace("-", "−")


def exponent_of(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
