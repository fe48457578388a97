"""The outcome of an experiment: its cases, and the verdict computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from vitreous.lab.claim import Case
from vitreous.lab.estimate import Estimate
from vitreous.lab.prediction import Agreement, Near, as_json, from_json


class Verdict(StrEnum):
    """Whether a claim holds."""

    HOLDS = "holds"
    CARE = "holds with care"
    REFUTED = "refuted"
    OPEN = "undecided"  # the intervals are too wide to decide
    MISSING = "not run"  # required weights or data were not given
    BROKEN = "broken"  # the measurement contradicts the correct prediction


def decide_verdict(cases: Sequence[Case]) -> Verdict:
    """Decide whether a claim holds: in all cases (holds), in some (with care), or in none (refuted or undecided).

    If a case disagrees with the correct prediction, the experiment is broken.
    """
    if any(case.right and case.right.judge(case.measured) is Agreement.DISAGREES for case in cases):
        return Verdict.BROKEN
    found = [case.document.judge(case.measured) for case in cases if case.document]
    if not found:
        return Verdict.MISSING
    if all(each is Agreement.AGREES for each in found):
        return Verdict.HOLDS
    if Agreement.AGREES in found:
        return Verdict.CARE
    return Verdict.REFUTED if Agreement.DISAGREES in found else Verdict.OPEN


@dataclass(frozen=True)
class ClaimOutcome:
    """The measured cases of a claim, with what is needed to draw, judge and reproduce them."""

    name: str
    cases: tuple[Case, ...]
    quick: bool
    seconds: float
    series: dict[str, list[float]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    made: dict[str, Any] = field(default_factory=dict)  # provenance: command, commit, seeds, threads

    @property
    def verdict(self) -> Verdict:
        return decide_verdict(self.cases)

    @property
    def deciding(self) -> Case | None:
        """The case with the largest disagreement, or the first case if none disagrees."""
        if self.verdict is Verdict.BROKEN:
            return max((case for case in self.cases if case.right), key=lambda case: discrepancy(case, case.right))
        tested = [case for case in self.cases if case.document]
        disagreeing = [
            case for case in tested if case.document and case.document.judge(case.measured) is Agreement.DISAGREES
        ]
        if disagreeing:
            return max(disagreeing, key=lambda case: discrepancy(case, case.document))
        return tested[0] if tested else None

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON, with the verdict included for readers of the file."""
        cases = [
            {**asdict(case), "document": as_json(case.document), "right": as_json(case.right)} for case in self.cases
        ]
        return {**asdict(self), "verdict": str(self.verdict), "cases": cases}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> ClaimOutcome:
        """Restore an outcome; the verdict is computed again."""
        fields = {name: value for name, value in found.items() if name != "verdict"}
        fields["cases"] = tuple(case_from_json(case) for case in found["cases"])
        fields["left_out"] = tuple(found["left_out"])
        return cls(**fields)


def case_from_json(found: dict[str, Any]) -> Case:
    predictions = {name: from_json(found[name]) for name in ("document", "right")}
    return Case(**{**found, **predictions, "measured": Estimate(**found["measured"])})


def discrepancy(case: Case, prediction: Any) -> float:
    """Measure how far a case misses a prediction: in units of the tolerance or, for bounds, relative to the bound.

    Half the interval's width replaces the bound if that is larger, in particular for a bound of zero.
    """
    estimate = case.measured
    if prediction.judge(estimate) is not Agreement.DISAGREES:
        return 0.0
    bound = max(abs(prediction.value), (estimate.high - estimate.low) / 2) or abs(estimate.value)
    scale = prediction.within if isinstance(prediction, Near) else bound
    return abs(estimate.value - prediction.value) / (scale or 1e-12)
