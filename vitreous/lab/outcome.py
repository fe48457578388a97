"""What an experiment found: its cases, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from vitreous.lab.claim import Case
from vitreous.lab.estimate import Estimate
from vitreous.lab.prediction import Agreement, Near, as_json, from_json


class Verdict(StrEnum):
    HOLDS = "holds"
    CARE = "holds with care"
    REFUTED = "refuted"
    OPEN = "undecided"  # the intervals are too wide to tell
    MISSING = "not run"  # something that it needs was not given
    BROKEN = "broken"  # the experiment contradicts what is known to be right


def verdict(cases: Sequence[Case]) -> Verdict:
    """Holds where every case agrees with the text, refuted where none does and one disagrees, with care in between.

    A case that disagrees with what is right says that the experiment is broken.
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
class Outcome:
    name: str
    cases: tuple[Case, ...]
    quick: bool
    seconds: float
    series: dict[str, list[float]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    made: dict[str, Any] = field(default_factory=dict)  # command, commit, seeds, threads: how to make it again

    @property
    def verdict(self) -> Verdict:
        return verdict(self.cases)

    @property
    def deciding(self) -> Case | None:
        """The case that speaks most clearly for the verdict: the worst contradiction, or the first case that agrees."""
        if self.verdict is Verdict.BROKEN:
            return max((case for case in self.cases if case.right), key=lambda case: distance(case, case.right))
        told = [case for case in self.cases if case.document]
        against = [case for case in told if case.document and case.document.judge(case.measured) is Agreement.DISAGREES]
        if against:
            return max(against, key=lambda case: distance(case, case.document))
        return told[0] if told else None

    def to_json(self) -> dict[str, Any]:
        cases = [
            {**asdict(case), "document": as_json(case.document), "right": as_json(case.right)} for case in self.cases
        ]
        return {**asdict(self), "verdict": str(self.verdict), "cases": cases}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Outcome:
        fields = {name: value for name, value in found.items() if name != "verdict"}
        fields["cases"] = tuple(case_from_json(case) for case in found["cases"])
        fields["left_out"] = tuple(found["left_out"])
        return cls(**fields)


def case_from_json(found: dict[str, Any]) -> Case:
    predictions = {name: from_json(found[name]) for name in ("document", "right")}
    return Case(**{**found, **predictions, "measured": Estimate(**found["measured"])})


def distance(case: Case, prediction: Any) -> float:
    """How far a measurement lies from a prediction: in tolerances or, for bounds, in shares of the bound.

    A bound of zero has no shares: there the half width of the interval is the unit.
    """
    found = case.measured
    if prediction.judge(found) is not Agreement.DISAGREES:
        return 0.0
    bound = max(abs(prediction.value), (found.high - found.low) / 2) or abs(found.value)
    scale = prediction.within if isinstance(prediction, Near) else bound
    return abs(found.value - prediction.value) / (scale or 1e-12)
