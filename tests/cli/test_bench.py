"""vitreous bench: the table of engines and its error messages."""

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from vitreous import machine
from vitreous.cli import main
from vitreous.deploy import accelerate as module
from vitreous.deploy import candidates


@pytest.fixture
def weights(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(candidates, "TIMING_SECONDS", 0.0)
    some = {key: candidates.BACKENDS[key] for key in (("eager", "fp32"), ("native", "bf16"))}
    monkeypatch.setattr(module, "BACKENDS", some)
    monkeypatch.setattr(candidates, "BACKENDS", module.BACKENDS)
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx2", "fma"}))
    torch.manual_seed(0)
    path = tmp_path / "small.safetensors"
    vt.save(vt.create_model("vit_tiny_16", depth=1, dim=32, num_heads=2, image_size=32, num_classes=3), path)
    return path


def test_results_are_printed_and_cached(weights, capsys):
    assert main(["bench", str(weights), "--batch", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 images of 32×32" in shown
    assert "→ eager" in shown
    assert "only one token" in " ".join(shown.split())
    assert main(["bench", str(weights), "--batch", "2"]) == 0
    assert ", cached" in capsys.readouterr().out


def test_with_images(weights, tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(np.full((40, 50, 3), 90, dtype=np.uint8)).save(folder / "one.png")
    assert main(["bench", str(weights), "--images", str(folder), "--batch", "1"]) == 0
    assert main(["bench", str(weights), "--images", str(folder)]) != 0
    assert "holds 1 images, --batch needs 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "0"], "--batch must be at least 1"),
        (["--images", "nowhere"], "--images nowhere does not exist"),
    ],
)
def test_invalid_options(weights, capsys, words, message):
    assert main(["bench", str(weights), *words]) != 0
    assert message in capsys.readouterr().err
