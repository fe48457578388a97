"""Learning rate schedules equal their formulas at every step."""

import math

import pytest

import vitreous as vt
from vitreous.train.schedule import SCHEDULES, Constant, Cosine, Linear, Steps


def test_warmup_then_cosine_at_every_step():
    total, warmup = 1000, 100
    for step in range(total):
        expected = (
            (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        )
        assert Cosine(warmup=0.1).rate(step, total) == pytest.approx(expected, abs=1e-12)


def test_the_cosine_never_turns_negative():
    assert min(Cosine(warmup=0.1).rate(step, 50) for step in range(60)) >= 0


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (Linear(final=0.1, warmup=0), 0, 1.0),
        (Linear(final=0.1, warmup=0), 50, 0.5 + 0.5 * 0.1),
        (Linear(final=0.1, warmup=0), 100, 0.1),
        (Cosine(final=0.1, warmup=0), 100, 0.1),
        (Constant(warmup=0), 99, 1.0),
        (Steps(warmup=0), 33, 1.0),
        (Steps(warmup=0), 34, 0.1),
        (Steps(warmup=0), 67, 0.01),
        (Steps(warmup=0), 99, 0.01),
    ],
)
def test_other_kinds(schedule, step, expected):
    assert schedule.rate(step, 100) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_first_warmup_step_has_a_positive_learning_rate(schedule):
    assert schedule.override(warmup=0.1).rate(0, 100) == pytest.approx(0.1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_chosen_by_name_and_by_json(name):
    chosen = vt.TrainConfig(schedule={"schedule": name, "warmup": 0.2}).schedule
    assert chosen == SCHEDULES[name].override(warmup=0.2)
    assert vt.TrainConfig(schedule=chosen.to_json()).schedule == chosen
    assert vt.TrainConfig(schedule=name).schedule == SCHEDULES[name]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cosin", "must be a schedule's name or options, got 'cosin'; did you mean 'cosine'?"),
        ({"schedule": "steps", "final": 0.1}, "Steps has no option 'final'"),
        ({"schedule": "linear", "warmup": 1.5}, r"warmup must lie in \[0, 1\], got 1.5"),
    ],
)
def test_invalid_schedules(given, message):
    with pytest.raises(ValueError, match=message):
        vt.TrainConfig(schedule=given)
