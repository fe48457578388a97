"""Segmentation end to end: training, resume, evaluation, prediction, explanation, report, export, two processes."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from tests.train.runs import assert_same, tensors
from vitreous.cli import main
from vitreous.data.augment import Augment
from vitreous.data.shapes import Shapes
from vitreous.models.vit import ViTConfig
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.runs.run import train
from vitreous.tasks.segment import Segment
from vitreous.train.config import TrainConfig
from vitreous.train.loop import Interrupted, Trainer
from vitreous.train.optim import Muon

RECIPE = Recipe(
    model=vt.SegmenterConfig(
        image_size=(32, 32),
        backbone=ViTConfig(
            patch_size=(4, 4), dim=32, depth=2, num_heads=2, class_token=False, pool="mean", init="deit"
        ),
    ),
    data=DataConfig("shapes", limit=64),
    augment=Augment(crop="pad", pad=2, randaugment_ops=1),
    task=Segment(),
    train=TrainConfig(
        steps=24,
        batch_size=16,
        optimizer=Muon(lr=4e-3),
        log_every=1,
        checkpoint_every=8,
        evaluate_every=0,
        device="cpu",
        seed=1,
    ),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segment") / "run"
    torch.set_num_threads(1)
    return folder, train(RECIPE, folder)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """A scene that is not square and larger than the model's input."""
    scene = Shapes(1, (48, 80), seed=3).batch([0]).images[0]
    path = tmp_path_factory.mktemp("image") / "scene.png"
    Image.fromarray(scene.transpose(1, 2, 0)).save(path)
    return path


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return np.array([line["loss"] for line in lines if line["kind"] == "train"])


def test_it_trains_and_records_metrics(run):
    folder, outcome = run
    assert list(outcome.metrics)[:3] == ["miou", "pixel_accuracy", "loss"]
    assert losses(folder)[-4:].mean() < 0.6 * losses(folder)[0]
    assert outcome.metrics["pixel_accuracy"] > 0.7, "most pixels are background"
    result = json.loads((folder / "result.json").read_text())
    assert result["task"] == "segment"
    assert result["miou"] == outcome.metrics["miou"]
    confusion = np.load(folder / "predictions.npz")["confusion"]
    assert confusion.sum() == 64 * 32 * 32, "every pixel of every image counts once"


def test_a_stopped_run_ends_with_the_same_weights(run, tmp_path, monkeypatch):
    folder, _ = run
    step = Trainer.step

    def stops(self, index, batch, meter):
        step(self, index, batch, meter)
        self.stop_requested = index == 12

    monkeypatch.setattr(Trainer, "step", stops)
    with pytest.raises(Interrupted):
        train(RECIPE, tmp_path / "run")
    monkeypatch.setattr(Trainer, "step", step)
    train(RECIPE, tmp_path / "run", resume=True)
    assert_same(tensors(folder / "model.safetensors"), tensors(tmp_path / "run" / "model.safetensors"))


def test_evaluation_reproduces_the_recorded_metrics(run):
    folder, outcome = run
    data = vt.open_data("shapes", target=vt.Masks, image_size=(32, 32)).valid
    chosen = np.linspace(0, len(data) - 1, 64).astype(np.int64)
    found = vt.evaluate(folder / "model.safetensors", data.subset(chosen))
    assert found.metrics["miou"] == pytest.approx(outcome.metrics["miou"], abs=1e-6)
    assert found.confusion.shape == (11, 11)


def test_predictions_lie_on_the_source_image(run, image, tmp_path, capsys):
    folder, _ = run
    found = vt.Predictor(folder / "model.safetensors")(image)
    assert isinstance(found, vt.Segmentation)
    assert found.mask.shape == (48, 80), "a letterbox cuts nothing off"
    assert set(np.unique(found.mask)) <= set(range(11)), "and every pixel was seen"
    assert main(["predict", str(folder / "model.safetensors"), str(image), "--draw", str(tmp_path / "drawn")]) == 0
    (drawn,) = (tmp_path / "drawn").iterdir()
    with Image.open(drawn) as opened:
        assert opened.size == (80, 48)
    assert "background" in capsys.readouterr().out


def test_a_region_is_explained(run, image):
    folder, _ = run
    told = vt.explain(folder / "model.safetensors", image, target="background", quick=True)
    assert told.answer.target == 0
    shares = told.answer.probabilities
    assert shares.sum() == pytest.approx(1, abs=1e-5), "of a mask the shares of the classes are told"
    assert all(method.heat.shape == (8, 8) for method in told.methods.values())


def test_the_report_shows_masks(run):
    folder, _ = run
    page = (folder / "report.html").read_text()
    assert "Per-class IoU" in page
    assert "Examples" in page
    assert page.count("data:image/png;base64") >= 3 * 12


def test_export_computes_the_same(run, tmp_path):
    folder, _ = run
    pytest.importorskip("onnxruntime")
    made = vt.export(vt.load(folder / "model.safetensors"), tmp_path / "model.onnx")
    assert made.error < 1e-4
    import onnxruntime

    session = onnxruntime.InferenceSession(os.fspath(made.path), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["masks"]


def test_initialization_from_backbone_weights(run):
    folder, _ = run
    trained = vt.load(folder / "model.safetensors")
    fresh = RECIPE.model.override(num_classes=3).build()
    vt.load_weights(fresh, trained.backbone.state_dict())
    assert_same(
        {name: value.numpy() for name, value in fresh.backbone.state_dict().items()},
        {name: value.numpy() for name, value in trained.backbone.state_dict().items()},
    )


WORKER = """
import sys, torch
torch.set_num_threads(1)
from tests.tasks.test_segment_run import RECIPE
from vitreous.runs.run import train
from vitreous.train import parallel
train(RECIPE, sys.argv[1])
parallel.destroy_process_group()
"""


def test_two_processes_follow_the_same_curve(run, tmp_path):
    folder, _ = run
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*launcher, script, tmp_path / "run"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(folder), atol=2e-4)
    merged = np.load(tmp_path / "run" / "predictions.npz")["confusion"]
    assert merged.sum() == 64 * 32 * 32, "both processes' pixels, each once"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"augment": Augment(mixup=0.5)}, "MixUp and CutMix need class targets, the data has a mask per image"),
        ({"data": DataConfig("digits")}, "digits has one class per image, the task needs a mask per image"),
    ],
)
def test_incompatible_settings_are_errors(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        train(replace(RECIPE, **change), tmp_path / "run")
