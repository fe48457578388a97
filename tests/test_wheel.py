"""The built distributions are complete: the wheel, installed in a clean environment, works and is typed."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

USE = """
import torch, vitreous as vt
assert "site-packages" in vt.__file__, vt.__file__
model = vt.create_model("vit_tiny_16", num_classes=10, image_size=64, depth=2)
vt.save(model, "model.safetensors")
again = vt.load("model.safetensors")
images = torch.randn(1, 3, 64, 64)
with vt.record(again) as trace:
    again.eval()(images)
assert trace["blocks.1"].weights.shape == (1, 3, 17, 17)
assert torch.allclose(again(images), model.eval()(images), atol=1e-5)
print("works", vt.__version__)
"""

#: What a project that depends on Vitreous writes, and the types that its own checker must see.
DOWNSTREAM = """
from pathlib import Path

import vitreous as vt

model: vt.Backbone = vt.create_model("vit_tiny_16", num_classes=10)
result: vt.TrainResult = vt.train(model, "photos/", epochs=1)
evaluation: vt.Evaluation = vt.evaluate(result.model, "photos/")
explanation: vt.Explanation = vt.explain(model, Path("photo.jpg"), quick=True)
answer: vt.Prediction = vt.Predictor(model)("photo.jpg")
macs: float = vt.cost(model).macs
"""
MISTAKES = {
    'vt.create_model("vit_tiny_16", pretrained="yes")': "create_model",
    'vt.train(model, "photos/", epochs="three")': "float",
    "vt.Predictor(model).embedd": "embedd",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    return folder


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """The interpreter of a clean environment in which only the wheel is installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    (wheel,) = built.glob("*.whl")
    subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-compile", wheel], check=True)
    return folder / "bin" / "python"


def test_the_metadata_is_complete(built):
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_wheel_carries_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "vitreous/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]


def test_the_wheel_works_in_a_clean_environment(python, tmp_path):
    result = subprocess.run([python, "-c", USE], cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout.startswith("works"), result.stderr


def test_projects_that_use_it_are_type_checked(python, tmp_path):
    (tmp_path / "good.py").write_text(DOWNSTREAM)
    (tmp_path / "bad.py").write_text("\n".join([DOWNSTREAM, *MISTAKES]))
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--no-incremental"]
    good, bad = (
        subprocess.run([*command, name], cwd=tmp_path, capture_output=True, text=True) for name in ("good.py", "bad.py")
    )
    assert good.returncode == 0, good.stdout
    errors = [line for line in bad.stdout.splitlines() if ": error:" in line]
    assert len(errors) == len(MISTAKES), bad.stdout
    assert all(word in error for word, error in zip(MISTAKES.values(), errors, strict=True)), bad.stdout
