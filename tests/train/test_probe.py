"""Linear probing: a new classifier, and only a new one, is fitted to frozen features."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import vitreous as vt
from tests.train.runs import assert_same, tensors
from vitreous.data.base import Arrays
from vitreous.models.vit import ViTConfig
from vitreous.runs.choose import choose_recipe
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.runs.run import train
from vitreous.samples import MultiLabels
from vitreous.train.config import TrainConfig
from vitreous.train.loop import Interrupted, Trainer
from vitreous.train.probe import WEIGHT_DECAY, can_probe, extract_features, fit_head, fit_linear

CONFIG = ViTConfig(image_size=(16, 16), patch_size=(8, 8), dim=16, depth=1, num_heads=2, num_classes=3)
RECIPE = Recipe(
    model=CONFIG,
    data=DataConfig("shapes", limit=48),
    train=TrainConfig(steps=4, batch_size=8, checkpoint_every=1, evaluate_every=0, device="cpu", new_head="probe"),
)


@pytest.fixture
def data():
    """Images whose color says their class."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = rng.integers(0, 100, (60, 3, 16, 16)).astype(np.uint8)
    images[np.arange(60), labels] += 100
    return Arrays(images, np.eye(3, dtype=np.float32)[labels], ["red", "green", "blue"])


def test_it_equals_logistic_regression():
    rng = np.random.default_rng(1)
    z, labels = rng.normal(size=(80, 5)), rng.integers(0, 4, 80)
    z[np.arange(80), labels] += 1.5
    weight, bias = fit_linear(torch.from_numpy(z), torch.eye(4, dtype=torch.double)[labels], multilabel=False)
    other = LogisticRegression(C=1 / (WEIGHT_DECAY * 80), tol=1e-10, max_iter=5000).fit(z, labels)
    np.testing.assert_allclose(weight, other.coef_, atol=1e-4)
    np.testing.assert_allclose(bias - bias.mean(), other.intercept_ - other.intercept_.mean(), atol=1e-4)


def test_unknown_labels_do_not_count():
    z = torch.randn(40, 4, dtype=torch.double)
    targets = (z[:, :2] > 0).double()
    known = fit_linear(z[:30], targets[:30], multilabel=True)
    targets[30:] = torch.nan
    for one, other in zip(known, fit_linear(z, targets, multilabel=True), strict=True):
        torch.testing.assert_close(one, other)


def test_the_head_reads_the_features_as_they_are(data):
    model = CONFIG.build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    summary = fit_head(model, data, device="cpu")
    assert "on 60 training images (training accuracy 100.0%)" in summary
    features, targets = extract_features(model, data, workers=1)
    assert torch.equal((features.float() @ model.head.weight.T + model.head.bias).argmax(1), targets.argmax(1))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"head.weight", "head.bias"}


def test_several_labels(data):
    rows = np.stack([data.targets(np.arange(60)).values.numpy()[:, 0], np.full(60, np.nan)], axis=1)
    model = CONFIG.override(num_classes=2).build()
    fit_head(model, Arrays(data.images, MultiLabels(torch.from_numpy(rows)), ["red", "unknown"]), device="cpu")
    assert torch.isfinite(model.head.weight).all()
    assert not model.head.weight[1].any(), "all its labels are unknown"


def test_a_run_starts_from_it_and_resumes_to_the_same_weights(tmp_path, monkeypatch):
    train(RECIPE, tmp_path / "whole")
    step = Trainer.step

    def stops(self, index, batch, meter):
        step(self, index, batch, meter)
        self.stop_requested = index == 1

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stops)
        with pytest.raises(Interrupted):
            train(RECIPE, tmp_path / "again")
        patch.setattr("vitreous.runs.run.fit_head", lambda *_, **__: pytest.fail("fitted again"))
        patch.setattr(Trainer, "step", step)
        train(RECIPE, tmp_path / "again", resume=True)
    assert_same(*(tensors(tmp_path / name / "model.safetensors") for name in ("whole", "again")))


def test_a_trained_head_is_kept(tmp_path, monkeypatch):
    model = CONFIG.override(num_classes=10).build()
    torch.nn.init.normal_(model.head.bias)
    vt.save(model, tmp_path / "learned.safetensors")
    monkeypatch.setattr("vitreous.runs.run.fit_head", lambda *_, **__: pytest.fail("fitted over it"))
    train(replace(RECIPE, weights=str(tmp_path / "learned.safetensors")), tmp_path / "run")


def test_a_model_without_a_linear_head_is_refused():
    model = CONFIG.override(distilled=True).build()
    assert not can_probe(model)
    with pytest.raises(ValueError, match="choose 'random'"):
        fit_head(model, None, device="cpu")


def test_it_is_chosen_for_fine_tuning(tmp_path):
    model = CONFIG.build()
    vt.save(model, tmp_path / "start.safetensors")
    assert choose_recipe("digits", weights=str(tmp_path / "start.safetensors"))[0].train.new_head == "probe"
    assert choose_recipe("digits")[0].train.new_head == "random"


def test_a_probe_that_fine_tuning_makes_worse_is_kept(data, tmp_path):
    """A learning rate that destroys the features: the best model is the one before the first step."""
    weights = tmp_path / "start.safetensors"
    torch.manual_seed(0)
    vt.save(CONFIG.override(num_classes=7).build(), weights)
    config = RECIPE.train.override(evaluate_every=1, steps=6, optimizer="sgd", clip=0.0)
    config = config.override(optimizer=config.optimizer.override(lr=3.0))
    result = vt.train(vt.load(weights), data, tmp_path / "run", config=config, valid=0.3)
    scores = validations(tmp_path / "run")
    assert scores[0] == max(scores.values()) > min(scores.values())
    assert result.metrics["accuracy"] == scores[0]


def validations(folder):
    """Accuracy by step, from the log of a run."""
    entries = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return {entry["step"]: entry["accuracy"] for entry in entries if entry["kind"] == "valid"}
