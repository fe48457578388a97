"""The shared training runs of the laboratory, and statistics computed from them."""

import json

import numpy as np
import pytest
import torch

from vitreous.data.augment import evaluation_pixels
from vitreous.data.base import class_vectors
from vitreous.lab import sweep
from vitreous.lab.claims.scaling_law import best_exponent, power, saturating
from vitreous.lab.instruments.compare import contrast, difference
from vitreous.lab.trained import trained_run
from vitreous.lab.trial import Trial
from vitreous.train.optim import SGD

NUMBER = len(sweep.runs_and_seeds(Trial()))  # before any test adds runs


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return Trial(quick=True, folder=tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def short(trial):
    """A run of five steps."""
    patch = pytest.MonkeyPatch()
    patch.setitem(sweep.RUNS, "short", sweep.SweepRun(sweep.set_training(steps=5), change=sweep.without_residuals))
    yield trained_run(trial, "short")
    patch.undo()


def test_a_finished_run_is_not_trained_again(trial, short, monkeypatch):
    monkeypatch.setattr("vitreous.lab.trained.train_and_save", lambda *_: pytest.fail("trained again"))
    again = trained_run(trial, "short")
    assert (again.accuracy, again.losses) == (short.accuracy, short.losses)
    assert len(again.losses) == 5
    assert not again.diverged


def test_a_run_with_other_settings_is_trained_again(trial, short, monkeypatch):
    monkeypatch.setitem(
        sweep.RUNS, "short", sweep.SweepRun(sweep.set_training(steps=3), change=sweep.without_residuals)
    )
    assert len(trained_run(trial, "short").losses) == 3


def test_a_killed_run_is_trained_again(trial, short):
    path = short.weights.with_suffix(".json")
    path.write_text(path.read_text()[:20])
    assert len(trained_run(trial, "short").losses) == 5
    assert json.loads(path.read_text())["key"]


def test_the_saved_model_has_the_recorded_accuracy(short):
    images, targets = short.valid.pixels(np.arange(500)), class_vectors(short.valid, np.arange(500))
    with torch.no_grad():
        predictions = short.model(evaluation_pixels(torch.from_numpy(images), short.model.spec.preprocess)).argmax(1)
    assert (predictions.numpy() == targets.argmax(1)).mean() == pytest.approx(short.accuracy, abs=0.005)


def test_training_preserves_the_rng_state(trial, monkeypatch):
    monkeypatch.setitem(sweep.RUNS, "tiny", sweep.SweepRun(sweep.set_training(steps=1)))
    before = torch.get_rng_state()
    assert trained_run(trial, "tiny").model
    assert torch.equal(torch.get_rng_state(), before)


def test_the_sweep_has_at_most_sixty_runs():
    assert NUMBER <= 60


def test_a_diverged_run_keeps_its_record(trial, monkeypatch):
    wild = sweep.set_training(steps=20, optimizer=SGD(lr=1e12), clip=0.0)
    monkeypatch.setitem(sweep.RUNS, "wild", sweep.SweepRun(wild))
    run = trained_run(trial, "wild")
    assert run.diverged
    assert 0 < len(run.losses) < 20
    assert np.isfinite(run.accuracy)


def test_intervals_pool_the_variance_of_all_groups():
    one, other = [0.50, 0.52], [0.40, 0.42]
    found = difference(one, other, among=[one, other], images=10**9)
    assert found.value == pytest.approx(0.10)
    assert found.high - found.value == pytest.approx(4.3027 * 0.02 / 2**0.5, rel=1e-3)  # t(2), s² = 0.0002
    assert contrast({1: [one], -1: [other]}, among=[one, other], images=100).low < found.low


def test_single_seeds_have_no_variance():
    with pytest.raises(ValueError, match="two runs"):
        difference([0.5], [0.4], among=[[0.5], [0.4]], images=100)


def test_fits_recover_known_laws():
    size = np.geomspace(1e3, 1e6, 8)
    made = 0.8 - 0.5 * (size / 1e3) ** -0.4
    assert best_exponent(size, made) == pytest.approx(0.4, rel=0.02)
    assert saturating(size, made)(np.array(1e9)) == pytest.approx(0.8, abs=0.01)
    assert power(size, 0.1 * size**0.1)(np.array(1e9)) == pytest.approx(0.1 * 1e9**0.1)
