"""The built wheel, installed in a clean environment and used from another directory, works."""

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


@pytest.mark.slow
def test_wheel_in_a_clean_environment(tmp_path):
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "vitreous/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", wheel], check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = subprocess.run([python, "-c", USE], cwd=elsewhere, capture_output=True, text=True)
    assert result.stdout.startswith("works"), result.stderr
