"""Models export with a dynamic batch, trace without graph breaks and compile; in a child, where shapes go unchecked."""

import subprocess
import sys

import pytest

from tests.family import SMALLEST
from vitreous.layers.mixers import MIXERS

START = """
import torch, vitreous as vt
from tests.family import shallow

def build(name, options):
    torch.compiler.reset()
    return vt.create_model(name, image_size=64, num_classes=7, **shallow(name) | options).eval()
"""
EXPORT = """
batch = torch.export.Dim("batch", min=1, max=64)
for name, options in cases:
    model = build(name, options)
    images = torch.randn(2, 3, 64, 64)
    exported = torch.export.export(model, (images,), dynamic_shapes={"images": {0: batch}}).module()
    for size in (1, 5):
        some = torch.randn(size, 3, 64, 64)
        assert torch.allclose(exported(some), model(some), atol=1e-5), (name, options, size)
"""
TRACE = """
for name, options in cases:
    model = build(name, options)
    images = torch.randn(2, 3, 64, 48)
    traced = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    assert torch.allclose(traced(images), model(images), atol=1e-5), (name, options)
"""
INDUCTOR = """
for name, options in cases:
    model = build(name, options)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, dynamic=False)(images)
        assert torch.allclose(compiled, model(images), atol=1e-4), name
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


def run(code, cases):
    script = f"{START}\ncases = {cases}\n{code}\nprint('done')"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.strip().endswith("done"), result.stderr[-2000:]


def test_exports_with_a_dynamic_batch():
    run(EXPORT, [("vit_tiny_16", {}), ("swin_tiny", {})])


@pytest.mark.slow
@pytest.mark.parametrize("cases", [FAMILIES, MIXER_CASES, POSITIONS], ids=["families", "mixers", "positions"])
def test_every_family_mixer_and_position_exports_with_a_dynamic_batch(cases):
    run(EXPORT, cases)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [FAMILIES, MIXER_CASES, POSITIONS], ids=["families", "mixers", "positions"])
def test_traces_without_graph_breaks(cases):
    run(TRACE, cases)


@pytest.mark.slow
def test_inductor_computes_the_same():
    run(INDUCTOR, [("vit_tiny_16", {}), ("swin_tiny", {}), ("pvt_v2_b0", {})])
