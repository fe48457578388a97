"""The schedule equals its formula at every step."""

import math

import pytest

from vitreous.train.schedule import rate


def test_warmup_then_cosine_at_every_step():
    total, warmup = 1000, 100
    for step in range(total):
        expected = (
            (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        )
        assert rate(step, total, warmup=warmup) == pytest.approx(expected, abs=1e-12)


def test_the_cosine_never_turns_negative():
    assert min(rate(step, 50, warmup=5) for step in range(60)) >= 0


@pytest.mark.parametrize(
    ("kind", "step", "expected"),
    [
        ("linear", 0, 1.0),
        ("linear", 50, 0.5 + 0.5 * 0.1),
        ("linear", 100, 0.1),
        ("cosine", 100, 0.1),
        ("constant", 99, 1.0),
        ("steps", 33, 1.0),
        ("steps", 34, 0.1),
        ("steps", 67, 0.01),
        ("steps", 99, 0.01),
    ],
)
def test_other_kinds(kind, step, expected):
    assert rate(step, 100, warmup=0, kind=kind, final=0.1) == pytest.approx(expected)


def test_the_first_step_of_a_warmup_already_learns():
    assert rate(0, 100, warmup=10) == pytest.approx(0.1)
