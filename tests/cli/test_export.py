"""vitreous export; the exported files are tested in tests/deploy."""

from dataclasses import replace
from pathlib import Path

import pytest

import vitreous as vt
from vitreous.cli import export as command
from vitreous.cli import main
from vitreous.deploy.export import Check, Exported


@pytest.fixture
def written(monkeypatch):
    """Replace the export by a function that records its calls and returns a fixed result."""
    calls = []

    def write(model, path, **options):
        calls.append((model, options))
        size = options["image_size"] or model.config.image_size
        free = options["sizes"] == "any"
        kind = "onnx" if path.suffix == ".onnx" else "aoti"
        checks = (Check(1, size, 1e-7), Check(5, size, 3e-7))
        return Exported(path, kind, 1234567, size, (16, 16) if free else None, "" if free else "as asked for", checks)

    monkeypatch.setattr(command, "write", write)
    monkeypatch.setitem(command.FORMATS, "aoti", replace(command.FORMATS["aoti"], check=lambda: None))
    return calls


def run(capsys, *words):
    code = main(["export", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_output_lists_checks_and_usage(capsys, written, tmp_path):
    model = vt.create_model("vit_tiny_16", depth=1, image_size=32, num_classes=4)
    vt.save(model, tmp_path / "model.safetensors")
    code, out, err = run(capsys, tmp_path / "model.safetensors", Path("model.onnx"), "--image-size", 32, 48)
    assert (code, err) == (0, "")
    for words in (
        "32×48",
        "3.0e-07",
        "1.23 MB",
        "fixed at 32×48: as asked for",
        "onnxruntime.InferenceSession",
        "labels",
    ):
        assert words in out.replace("\n", " ")
    assert written[0][1]["image_size"] == (32, 48)
    assert written[0][0].config == model.config


def test_a_bare_model_name_is_initialized_at_random(capsys, written):
    code, out, err = run(capsys, "vit_tiny_16", "model.pt2", "--sizes", "any")
    assert code == 0
    assert "without weights" in err
    assert "any height and width that are multiples of 16×16" in out
    assert "aoti_load_package" in out


ERRORS = [
    (["vit_tiny_16", "model.onx"], "did you mean '.onnx'?"),
    (["vit_tiny_61", "model.onnx"], "vit_tiny_61"),
    (
        ["vit_tiny_16", "model.onnx", "--image-size", "1", "2", "3"],
        "one side length, or height and width; got 3 numbers",
    ),
    (["nothing.safetensors", "model.onnx"], "there is no weights file nothing.safetensors"),
]


@pytest.mark.parametrize(("words", "message"), ERRORS)
def test_errors_are_one_line(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
