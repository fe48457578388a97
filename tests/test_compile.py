"""Models trace without graph breaks, export with a dynamic batch and compile; in a child, where shapes go unchecked."""

import subprocess
import sys

import pytest

from tests.family import SMALLEST
from vitreous.layers.mixers import MIXERS

TRACE = """
import torch, vitreous as vt
from tests.family import shallow
batch = torch.export.Dim("batch", min=1, max=64)
for name, options in {cases}:
    torch.compiler.reset()
    model = vt.create_model(name, image_size=64, num_classes=7, **shallow(name) | options).eval()
    images = torch.randn(2, 3, 64, 64)
    traced = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    assert torch.allclose(traced(images), model(images), atol=1e-5)
    assert torch.allclose(traced(images[:, :, :48]), model(images[:, :, :48]), atol=1e-5)
    exported = torch.export.export(model, (images,), dynamic_shapes={{"images": {{0: batch}}}}).module()
    for size in (1, 2, 5):
        some = torch.randn(size, 3, 64, 64)
        assert torch.allclose(exported(some), model(some), atol=1e-5), (name, options, size)
print("traced")
"""
FAMILIES = [(name, {}) for name in SMALLEST]
POSITIONS = [
    ("vit_tiny_16", {"position": position})
    for position in ("none", "learned_2d", "sincos_1d", "sincos_2d", "relative", "rope")
]


MIXER_CASES = [
    ("vit_tiny_16", {"mixer": name, **({"class_token": False, "pool": "mean"} if mixer.no_prefix else {})})
    for name, mixer in MIXERS.items()
]
INDUCTOR = """
import torch, vitreous as vt
from tests.family import shallow
for name in {names}:
    model = vt.create_model(name, image_size=64, num_classes=7, **shallow(name)).eval()
    compiled = torch.compile(model, fullgraph=True)
    for size in (64, 96):
        images = torch.randn(2, 3, size, 64)
        with torch.no_grad():
            assert torch.allclose(compiled(images), model(images), atol=1e-4), (name, size)
print("compiled")
"""


@pytest.mark.parametrize(
    "cases",
    [
        FAMILIES,
        pytest.param(POSITIONS, marks=pytest.mark.slow),
        pytest.param(MIXER_CASES, marks=pytest.mark.slow),
    ],
    ids=["families", "positions", "mixers"],
)
def test_traces_whole_and_exports(cases):
    code = TRACE.format(cases=cases)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip().endswith("traced"), result.stderr[-2000:]


@pytest.mark.slow
def test_inductor_computes_the_same():
    code = INDUCTOR.format(names=["vit_tiny_16", "swin_tiny", "pvt_v2_b0"])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip().endswith("compiled"), result.stderr[-2000:]
