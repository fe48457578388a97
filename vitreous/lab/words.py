"""Results in words: what decided a verdict, and how a measurement is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vitreous.lab.estimate import Estimate
from vitreous.lab.outcome import Outcome, Verdict
from vitreous.lab.prediction import number
from vitreous.lab.table import find

LINE = "\n"

#: How verdicts come about; it stands on top of every page.
RULE = (
    "A claim is tested in several cases. Each has a prediction, which is our reading of the text, with a tolerance "
    "that we chose (the claim's file shows both), and a measurement with its 95 % interval. Where a claim tells how a "
    "published method works, what is measured is this library's implementation of it, which is tested against public "
    "ones. Prediction and measurement agree when the interval lies inside what was predicted, and disagree when it "
    "lies outside; where it reaches over the border the case is open. A claim holds when all its cases agree, holds "
    "with care when only some do, is refuted when none does and at least one disagrees, and is undecided otherwise. "
    "No verdict is typed in. What we hold to be right is predicted too: a measurement that contradicts it means that "
    "the experiment is broken, which is said instead of a verdict."
)


def measured(estimate: Estimate) -> str:
    """16.1 (15.9 … 16.2), or the bare number where there is no chance in it."""
    if estimate.low == estimate.high:
        return number(estimate.value)
    return f"{number(estimate.value)} ({number(estimate.low)} … {number(estimate.high)})"


def decided(outcome: Outcome) -> str:
    """The number that decides."""
    case = outcome.deciding
    if case is None:
        return "; ".join(outcome.left_out) or "nothing was measured"
    axes = find(outcome.name).claim.axes
    label = f"{axes.y.replace(LINE, ' ')}, {case.label}" if axes and case.at is not None else case.label
    if outcome.verdict is Verdict.BROKEN:
        return f"{label}: {case.right} is right, and {measured(case.measured)} was measured"
    return f"{label}: the text says {case.document}, measured {measured(case.measured)}"


def tally(outcomes: Iterable[Outcome]) -> str:
    """Of 60 claims 1 holds, 46 hold with care, 13 are refuted."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    if counts.total() == 1:
        (verdict,) = counts
        return f"one claim: {verdict}"
    said = ", ".join(f"{counts[each]} {words[counts[each] > 1]}" for each, words in SAID.items() if counts[each])
    return f"of {counts.total()} claims {said}"


#: Of one claim, and of several.
SAID = {
    Verdict.HOLDS: ("holds", "hold"),
    Verdict.CARE: ("holds with care", "hold with care"),
    Verdict.REFUTED: ("is refuted", "are refuted"),
    Verdict.OPEN: ("is undecided", "are undecided"),
    Verdict.MISSING: ("was not run", "were not run"),
    Verdict.BROKEN: ("is broken", "are broken"),
}
