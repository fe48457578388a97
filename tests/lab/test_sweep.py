"""The shared runs of the laboratory, and what is computed from them."""

import json

import numpy as np
import pytest
import torch

from vitreous.data.augment import evaluation_pixels
from vitreous.data.base import class_rows
from vitreous.lab import sweep
from vitreous.lab.claims.scaling_law import best_exponent, power, saturating
from vitreous.lab.instruments.compare import contrast, difference
from vitreous.lab.trained import trained
from vitreous.lab.trial import Trial
from vitreous.train.optim import SGD

NUMBER = len(sweep.pairs(Trial()))  # before any test adds to them


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return Trial(quick=True, folder=tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def short(trial):
    """Five steps are enough to see whether a run is kept."""
    patch = pytest.MonkeyPatch()
    patch.setitem(sweep.RUNS, "short", sweep.Run(sweep.training(steps=5), change=sweep.without_residuals))
    yield trained(trial, "short")
    patch.undo()


def test_a_finished_run_is_read_not_trained_again(trial, short, monkeypatch):
    monkeypatch.setattr("vitreous.lab.trained.train", lambda *_: pytest.fail("it was there already"))
    again = trained(trial, "short")
    assert (again.accuracy, again.losses) == (short.accuracy, short.losses)
    assert len(again.losses) == 5
    assert not again.diverged


def test_a_run_with_other_settings_is_trained_anew(trial, short, monkeypatch):
    monkeypatch.setitem(sweep.RUNS, "short", sweep.Run(sweep.training(steps=3), change=sweep.without_residuals))
    assert len(trained(trial, "short").losses) == 3


def test_what_was_killed_halfway_counts_for_nothing(trial, short):
    path = short.weights.with_suffix(".json")
    path.write_text(path.read_text()[:20])
    assert len(trained(trial, "short").losses) == 5
    assert json.loads(path.read_text())["key"]


def test_the_kept_model_answers_as_it_was_measured(short):
    images, targets = short.valid.pixels(np.arange(500)), class_rows(short.valid, np.arange(500))
    with torch.no_grad():
        answers = short.model(evaluation_pixels(torch.from_numpy(images), short.model.spec.preprocess)).argmax(1)
    assert (answers.numpy() == targets.argmax(1)).mean() == pytest.approx(short.accuracy, abs=0.005)


def test_training_leaves_chance_as_it_was(trial, monkeypatch):
    monkeypatch.setitem(sweep.RUNS, "tiny", sweep.Run(sweep.training(steps=1)))
    before = torch.get_rng_state()
    assert trained(trial, "tiny").model
    assert torch.equal(torch.get_rng_state(), before)


def test_the_sweep_has_at_most_sixty_runs():
    assert NUMBER <= 60


def test_a_run_that_diverges_keeps_what_it_had_learned(trial, monkeypatch):
    wild = sweep.training(steps=20, optimizer=SGD(lr=1e12), clip=0.0)
    monkeypatch.setitem(sweep.RUNS, "wild", sweep.Run(wild))
    run = trained(trial, "wild")
    assert run.diverged
    assert 0 < len(run.losses) < 20
    assert np.isfinite(run.accuracy)


def test_intervals_pool_the_spread_of_all_groups():
    one, other = [0.50, 0.52], [0.40, 0.42]
    found = difference(one, other, among=[one, other], images=10**9)
    assert found.value == pytest.approx(0.10)
    assert found.high - found.value == pytest.approx(4.3027 * 0.02 / 2**0.5, rel=1e-3)  # t(2), s² = 0.0002
    assert contrast({1: [one], -1: [other]}, among=[one, other], images=100).low < found.low


def test_one_seed_alone_has_no_spread():
    with pytest.raises(ValueError, match="two runs"):
        difference([0.5], [0.4], among=[[0.5], [0.4]], images=100)


def test_laws_are_found_again_in_numbers_made_with_them():
    size = np.geomspace(1e3, 1e6, 8)
    made = 0.8 - 0.5 * (size / 1e3) ** -0.4
    assert best_exponent(size, made) == pytest.approx(0.4, rel=0.02)
    assert saturating(size, made)(np.array(1e9)) == pytest.approx(0.8, abs=0.01)
    assert power(size, 0.1 * size**0.1)(np.array(1e9)) == pytest.approx(0.1 * 1e9**0.1)
