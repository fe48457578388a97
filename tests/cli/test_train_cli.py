"""``vitreous train`` and ``vitreous evaluate`` as people type them."""

import json

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from vitreous.cli import main

SMALL = ("--train.steps", "3", "--train.batch-size", "4", "--data.limit", "16", "--train.device", "cpu")


def run(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def photos(tmp_path):
    dice = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(10):
            pixels = dice.integers(0, 256, (50, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.jpg")
    return tmp_path / "photos"


def test_a_folder_of_photos_becomes_a_model(capsys, tmp_path, photos):
    code, out, err = run(capsys, "train", "--data", photos, "--output", tmp_path / "run", *SMALL)
    assert code == 0, err
    assert "Chosen for" in out
    assert "because" in out
    assert "no validation split" in err
    model = vt.load(tmp_path / "run" / "model.safetensors")
    assert model.spec.labels.names == ("cat", "dog")
    code, out, _ = run(capsys, "evaluate", tmp_path / "run" / "model.safetensors", "--data", photos)
    assert code == 0
    assert "accuracy" in out
    assert "mistaken most for" in out


def test_options_are_typed_and_reach_the_run(capsys, tmp_path):
    words = ("train", "quickstart", "--train.lr", "5e-4", "--model.dim", "32", "--output", tmp_path / "run", *SMALL)
    assert run(capsys, *words)[0] == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["train"]["lr"] == 5e-4
    assert config["model"]["dim"] == 32


def test_a_second_start_needs_resume(capsys, tmp_path):
    words = ("train", "quickstart", "--output", tmp_path / "run", *SMALL)
    assert run(capsys, *words)[0] == 0
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "holds a run already; add --resume" in err
    assert run(capsys, *words, "--resume")[0] == 0


def test_smoke(capsys, tmp_path):
    assert run(capsys, "train", "cifar10_vit", "--smoke", "--output", tmp_path / "run")[0] == 0


def test_help_lists_the_recipes(capsys):
    code, out, _ = run(capsys, "train", "--help")
    assert code == 0
    for word in ("cifar10_vit", "imagenet_vit", "--resume", "torchrun"):
        assert word in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "nothing"), "there is no recipe 'nothing'"),
        (("train", "--smoke"), "give a recipe or --data"),
        (("train", "--data", "no/such/place"), "no/such/place"),
        (("train", "cifar10_vit", "--data", "no/such/place"), "no/such/place"),
        (("train", "quickstart", "--model", "vit_tiny_16"), "a recipe brings its own model"),
        (("evaluate", "no.safetensors", "--data", "shapes"), "there is no weights file"),
    ],
)
def test_mistakes_get_one_line(capsys, words, message):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_fine_tuning_reports_what_was_loaded(capsys, tmp_path, photos):
    start = vt.create_model("vit_tiny_16", image_size=48, patch_size=16, dim=32, depth=2, num_heads=2)
    vt.save(start, tmp_path / "start.safetensors")
    words = ("train", "--data", photos, "--weights", tmp_path / "start.safetensors", "--output", tmp_path / "run")
    code, out, err = run(capsys, *words, *SMALL)
    assert code == 0, err
    assert "layer decay" in out
    assert "a new one" in err
    assert vt.load(tmp_path / "run" / "model.safetensors").config.dim == 32
