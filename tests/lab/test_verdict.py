"""Verdicts are computed from predictions and intervals."""

import numpy as np
import pytest

from vitreous.lab.claim import Case
from vitreous.lab.estimate import Estimate, bootstrap, exactly, mean_of
from vitreous.lab.outcome import ClaimOutcome, Verdict, decide_verdict
from vitreous.lab.prediction import Agreement, AtLeast, AtMost, Near, format_number, near

INSIDE, OUTSIDE, ACROSS = Estimate(1.0, 0.95, 1.05), Estimate(2.0, 1.9, 2.1), Estimate(1.1, 1.0, 1.2)
TEXT = Near(1.0, 0.1)


def case(measured, document=TEXT, right=None):
    return Case("a case", measured, document=document, right=right)


@pytest.mark.parametrize(
    ("prediction", "agrees", "disagrees", "open"),
    [
        (Near(1.0, 0.1), INSIDE, OUTSIDE, ACROSS),
        (AtLeast(1.5), OUTSIDE, INSIDE, Estimate(1.5, 1.4, 1.6)),
        (AtMost(1.5), INSIDE, OUTSIDE, Estimate(1.5, 1.4, 1.6)),
    ],
)
def test_an_interval_inside_agrees_and_one_outside_disagrees(prediction, agrees, disagrees, open):
    assert prediction.judge(agrees) is Agreement.AGREES
    assert prediction.judge(disagrees) is Agreement.DISAGREES
    assert prediction.judge(open) is Agreement.OPEN


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ((INSIDE, INSIDE), Verdict.HOLDS),
        ((INSIDE, OUTSIDE), Verdict.CARE),
        ((INSIDE, ACROSS), Verdict.CARE),
        ((OUTSIDE, OUTSIDE), Verdict.REFUTED),
        ((OUTSIDE, ACROSS), Verdict.REFUTED),
        ((ACROSS, ACROSS), Verdict.OPEN),
        ((), Verdict.MISSING),
    ],
)
def test_cases_together_give_the_verdict(measured, expected):
    assert decide_verdict([case(each) for each in measured]) is expected


def test_contradicting_the_correct_value_is_a_broken_experiment():
    assert decide_verdict([case(INSIDE), case(INSIDE, right=AtLeast(3.0))]) is Verdict.BROKEN
    assert decide_verdict([case(INSIDE), case(INSIDE, right=AtMost(3.0))]) is Verdict.HOLDS


def test_the_deciding_case_is_the_worst_contradiction():
    cases = (
        case(INSIDE),
        Case("near miss", Estimate(1.3, 1.2, 1.4), document=TEXT),
        Case("far", OUTSIDE, document=TEXT),
    )
    assert ClaimOutcome("x", cases, quick=True, seconds=0.0).deciding.label == "far"
    assert ClaimOutcome("x", cases[:1], quick=True, seconds=0.0).deciding.label == "a case"


def test_a_case_without_prediction_is_an_error():
    with pytest.raises(ValueError, match="tests nothing"):
        Case("idle", INSIDE)


def test_intervals_over_seeds_have_nominal_coverage():
    draws = np.random.default_rng(0)
    found = [mean_of(draws.normal(3.0, 2.0, size=5)) for _ in range(2000)]
    assert np.mean([e.low <= 3.0 <= e.high for e in found]) == pytest.approx(0.95, abs=0.015)


def test_bootstrap_intervals_have_nominal_coverage():
    draws = np.random.default_rng(0)
    found = [bootstrap(draws.normal(3.0, 2.0, size=60), np.mean, rounds=200, seed=i) for i in range(250)]
    assert np.mean([e.low <= 3.0 <= e.high for e in found]) == pytest.approx(0.94, abs=0.04)


def test_one_sample_has_no_interval():
    with pytest.raises(ValueError, match="two seeds"):
        mean_of([1.0])


def test_an_outcome_round_trips_through_json():
    cases = (
        Case("a", INSIDE, document=near(2.0, share=0.1), right=AtLeast(0.0), at=3.0, group="g"),
        Case("b", exactly(1), right=AtMost(2.0)),
    )
    outcome = ClaimOutcome("permutation", cases, True, 1.5, {"x": [1.0, 2.0]}, ("a part",), {"seeds": 4})
    assert ClaimOutcome.from_json(outcome.to_json()) == outcome


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.98765, "0.988"),
        (-0.5, "−0.5"),
        (123456.7, "123,457"),
        (86_567_656.0, "8.66·10⁷"),
        (0.00012, "1.20·10⁻⁴"),
        (float("inf"), "∞"),
    ],
)
def test_numbers_have_three_significant_digits(value, written):
    assert format_number(value) == written
