"""Results in words: the deciding case of a verdict, formatted measurements, and the tally of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vitreous.lab.estimate import Estimate
from vitreous.lab.outcome import ClaimOutcome, Verdict
from vitreous.lab.prediction import format_number
from vitreous.lab.table import find_experiment

LINE = "\n"

#: How verdicts are computed; printed at the top of every page.
RULE = (
    "Each claim is tested in several cases. A case compares a prediction, which is the text's statement with a chosen "
    "tolerance (both are in the claim's file), with a measurement and its 95 % confidence interval. Claims about a "
    "published method are measured on this library's implementation, which is tested against public ones. A case "
    "agrees if the interval lies inside the predicted range, disagrees if it lies outside, and is open if it overlaps "
    "the boundary. A claim holds if all its cases agree, holds with care if only some do, is refuted if none does and "
    "at least one disagrees, and is undecided otherwise. Verdicts are computed, never entered by hand. The correct "
    "value is predicted as well: a measurement that contradicts it means that the experiment is broken, which is "
    "reported in place of a verdict."
)


def format_estimate(estimate: Estimate) -> str:
    """Format an estimate with its interval, such as 16.1 (15.9 … 16.2), or as a number if deterministic."""
    if estimate.low == estimate.high:
        return format_number(estimate.value)
    return f"{format_number(estimate.value)} ({format_number(estimate.low)} … {format_number(estimate.high)})"


def deciding_evidence(outcome: ClaimOutcome) -> str:
    """Describe the case that decides the verdict: its prediction and measurement."""
    case = outcome.deciding
    if case is None:
        return "; ".join(outcome.left_out) or "nothing was measured"
    axes = find_experiment(outcome.name).claim.axes
    label = f"{axes.y.replace(LINE, ' ')}, {case.label}" if axes and case.at is not None else case.label
    if outcome.verdict is Verdict.BROKEN:
        return f"{label}: the correct value is {case.right}, measured {format_estimate(case.measured)}"
    return f"{label}: the text predicts {case.document}, measured {format_estimate(case.measured)}"


def tally(outcomes: Iterable[ClaimOutcome]) -> str:
    """Count verdicts, as in: of 60 claims 1 holds, 46 hold with care, 13 are refuted."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    if counts.total() == 1:
        (verdict,) = counts
        return f"one claim: {verdict}"
    counted = ", ".join(
        f"{counts[each]} {phrases[counts[each] > 1]}" for each, phrases in VERDICT_PHRASES.items() if counts[each]
    )
    return f"of {counts.total()} claims {counted}"


#: Singular and plural.
VERDICT_PHRASES = {
    Verdict.HOLDS: ("holds", "hold"),
    Verdict.CARE: ("holds with care", "hold with care"),
    Verdict.REFUTED: ("is refuted", "are refuted"),
    Verdict.OPEN: ("is undecided", "are undecided"),
    Verdict.MISSING: ("was not run", "were not run"),
    Verdict.BROKEN: ("is broken", "are broken"),
}
