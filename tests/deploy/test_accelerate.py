"""vt.accelerate: accurate, at least as fast as the plain model, and without side effects on the caller's model."""

import copy
import json
import math
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import vitreous as vt
from vitreous import machine
from vitreous.deploy import accelerate as module
from vitreous.deploy import candidates
from vitreous.deploy.candidates import Candidate
from vitreous.deploy.engine import EngineUnavailable
from vitreous.deploy.native import build

IMAGES = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(candidates, "TIMING_SECONDS", 0.0)
    return tmp_path


@pytest.fixture(scope="module")
def kernel():
    """Compiled once for all tests, outside of their temporary caches."""
    try:
        return build.library()
    except EngineUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return vt.create_model("vit_tiny_16", depth=2, dim=64, num_heads=2, image_size=64, num_classes=10)


def pretend(monkeypatch, **found):
    """Replace the engines by fakes: name → (function from the model to a module, its speed-up)."""
    speeds = {}

    def backend(name):
        def run(job, precision):
            wrap, speed = found[name]
            candidate = Candidate(name, precision, wrap(job.model))
            speeds[candidate.module] = speed
            return candidate

        return run

    monkeypatch.setattr(candidates, "BACKENDS", {(name, "fp32"): backend(name) for name in found})
    monkeypatch.setattr(module, "BACKENDS", candidates.BACKENDS)
    monkeypatch.setattr(candidates, "speed_up", lambda plain, fast, images: speeds[fast])


class Off(nn.Module):
    """The model's outputs times a factor."""

    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, images):
        return self.model(images) * self.factor


@pytest.mark.parametrize("precision", ["fp32", "int16", "int8"])
def test_outputs_for_any_batch(kernel, model, precision):
    fast = vt.accelerate(model, IMAGES, precision, engines=["eager", "native"])
    model.eval()
    bound = 1e-5 if precision == "fp32" else 0.02
    for images in (IMAGES[:1], IMAGES, torch.randn(7, 3, 64, 64), torch.randn(2, 3, 96, 48)):
        expected = model(images).detach()
        assert (fast(images) - expected).norm() / expected.norm() < bound * (1 if images.shape[2] == 64 else 2)
    assert fast.report.precision == precision


def test_the_model_is_left_alone(kernel, model):
    model.train()
    model.blocks[1].eval()
    modes = [part.training for part in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parts = [type(part) for part in model.modules()]
    fast = vt.accelerate(model, IMAGES, "int8")
    assert fast.model is model
    assert [part.training for part in model.modules()] == modes
    assert [type(part) for part in model.modules()] == parts
    model(IMAGES).sum().backward()
    assert model.blocks[0].mlp.fc1.weight.grad is not None, "training still works"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not list(fast.parameters()), "a wrapper has no weights to save or train"


def test_recording_runs_the_original_with_a_warning(kernel, model):
    fast = vt.accelerate(model.eval(), IMAGES, "int16")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with vt.record(fast) as trace:
            trace.model(IMAGES)
    assert "call trace.model" in str(caught[0].message)
    assert trace["blocks.1"].weights.shape == (3, 2, 17, 17)


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_with_advice(model, attempt):
    fast = vt.accelerate(model, IMAGES, "fp32", engines=["eager"])
    with pytest.raises(TypeError, match="and accelerate that again"):
        attempt(fast)


def test_torch_is_left_as_it_was(kernel, model):
    before = torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype(), torch.random.get_rng_state()
    vt.accelerate(model, IMAGES, engines=["eager", "native"])
    after = torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype(), torch.random.get_rng_state()
    assert before[:3] == after[:3]
    assert torch.equal(before[3], after[3])


def test_the_fastest_within_tolerance_wins(monkeypatch, model):
    right, wrong = (lambda model: Off(model, 1.0)), (lambda model: Off(model, 1.01))
    pretend(monkeypatch, eager=(right, 1.0), native=(right, 1.5), inductor=(wrong, 9.0), onnxruntime=(right, 1.2))
    report = vt.accelerate(model, IMAGES, engines=["eager", "native", "inductor", "onnxruntime"]).report
    assert (report.engine, report.speed_up) == ("native", 1.5)
    assert "its error exceeds the tolerance of 0.0001" in "\n".join(report.reasons)
    assert "→ native" in str(report)
    assert "1.50 ×" in str(report)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_non_finite_outputs_never_win(monkeypatch, model, factor):
    pretend(monkeypatch, eager=(lambda m: Off(m, 1.0), 1.0), native=(lambda m: Off(m, factor), 9.0))
    assert vt.accelerate(model, IMAGES, tolerance=1e9).report.engine == "eager"


def test_an_engine_that_fails_at_another_batch_size_is_rejected(monkeypatch, model):
    class ThisBatchOnly(Off):
        def forward(self, images):
            return self.model(images) if len(images) == len(IMAGES) else self.model(images) * 2

    pretend(monkeypatch, eager=(lambda m: Off(m, 1.0), 1.0), native=(lambda m: ThisBatchOnly(m, 1), 9.0))
    assert vt.accelerate(model, IMAGES).report.engine == "eager"


def test_slow_engines_are_skipped_when_not_needed(monkeypatch, model):
    right = lambda model: Off(model, 1.0)  # noqa: E731
    pretend(monkeypatch, eager=(right, 1.0), native=(right, 1.5), inductor=(right, 9.0))
    report = vt.accelerate(model, IMAGES).report
    assert report.engine == "native"
    assert "inductor, fp32: not tried: another backend is fast enough" in "\n".join(report.reasons)
    assert vt.accelerate(model, IMAGES, engines=["eager", "native", "inductor"], fresh=True).report.engine == "inductor"
    pretend(monkeypatch, eager=(right, 1.0), native=(right, 1.1), inductor=(right, 9.0))
    assert vt.accelerate(model, IMAGES, fresh=True).report.engine == "inductor"


def test_the_choice_is_cached_and_verified_again(monkeypatch, model, own_cache):
    calls = []

    def count(model, factor):
        calls.append(factor)
        return Off(model, factor)

    pretend(monkeypatch, eager=(lambda m: count(m, 1.0), 1.0), native=(lambda m: count(m, 1.00001), 2.0))
    assert not vt.accelerate(model, IMAGES).report.cached
    assert calls == [1.0, 1.00001]
    again = vt.accelerate(model, IMAGES).report
    assert (again.cached, again.engine, again.speed_up, calls[2:]) == (True, "native", 2.0, [1.00001])
    assert not vt.accelerate(model, IMAGES, fresh=True).report.cached
    pretend(monkeypatch, eager=(lambda m: Off(m, 1.0), 1.0), native=(lambda m: Off(m, 3.0), 2.0))
    now = vt.accelerate(model, IMAGES).report
    assert (now.cached, now.engine) == (False, "eager"), "a backend that is no longer accurate is not used"
    (cache_file,) = own_cache.glob("choice-*.json")
    for broken in ("", "[]", json.dumps({"engine": "warp", "precision": "fp32", "speed_up": 1, "choice": None})):
        cache_file.write_text(broken)
        assert vt.accelerate(model, IMAGES).report.engine == "eager"


def test_without_a_compiler_it_works_with_a_reason(monkeypatch, model):
    def missing():
        raise EngineUnavailable("no C compiler found; install gcc or clang, or set CC")

    monkeypatch.setattr(build, "library", missing)
    monkeypatch.setattr(candidates, "prepare_inductor", lambda job, precision: missing())
    fast = vt.accelerate(model, IMAGES, engines=["eager", "native"])
    assert fast.report.engine == "eager"
    assert fast.report.error < 1e-5
    assert "no C compiler found" in str(fast.report)


def test_unavailable_backends_fall_back(monkeypatch, model):
    """Backends that this machine lacks fall back to the plain model, with the reason."""
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx2", "fma"}))
    fast = vt.accelerate(model, IMAGES, "bf16", engines=["native", "inductor"])
    assert (fast.report.engine, fast.report.precision) == ("eager", "fp32")
    assert "AMX tiles" in str(fast.report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int9"}, "precision must be one of auto, fp32, bf16, int16, int8"),
        ({"engines": ["nativ"]}, "unknown engine 'nativ'; did you mean 'native'?"),
        ({"engines": ["eager"], "precision": "int8"}, "none of the engines eager runs in int8"),
        ({"tolerance": 0}, "tolerance must be positive"),
        ({"example": IMAGES[:0]}, "the example is an empty batch"),
        ({"example": []}, "needs a batch of images"),
        ({"example": IMAGES[:, :1]}, "the model takes 3 channels"),
    ],
)
def test_invalid_arguments(model, options, message):
    with pytest.raises(ValueError, match=message):
        vt.accelerate(**{"model": model, "example": IMAGES, **options})


def test_only_vitreous_models():
    with pytest.raises(ValueError, match="needs a Vitreous model, got Linear"):
        vt.accelerate(nn.Linear(2, 2), IMAGES)


def test_invalid_images_raise_the_models_error(kernel, model):
    fast = vt.accelerate(model, IMAGES, "int16")
    with pytest.raises(ValueError, match="images must have shape"):
        fast(IMAGES[0])


def test_a_crash_in_a_trial_is_detected(own_cache):
    machine.survives.cache_clear()
    assert machine.survives("pass") is True
    assert machine.survives("import os, signal; os.kill(os.getpid(), signal.SIGILL)") is False
    machine.survives.cache_clear()
    for memory in own_cache.glob("survives-*.json"):
        kept = json.loads(memory.read_text())
        memory.write_text(json.dumps(kept | {"survives": not kept["survives"]}))
    assert machine.survives("pass") is False, "the result is cached"
    machine.survives.cache_clear()


def test_importing_it_is_light():
    """Engines import their libraries on use."""
    program = (
        "import sys, vitreous.deploy.accelerate; print([n for n in ('torch._inductor', 'onnx') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


def test_where_nothing_is_accurate_enough_the_model_itself_runs(kernel, model):
    fast = vt.accelerate(model.eval(), IMAGES, tolerance=1e-12, engines=["native"])
    assert torch.equal(fast(IMAGES), model(IMAGES))
    assert "no backend is within tolerance" in str(fast.report)


def test_static_ranges_are_the_same_when_cached(kernel, model):
    images = torch.cat([IMAGES * 0.2, IMAGES])
    runs = [
        vt.accelerate(model.eval(), images, "int8", static=True, engines=["native"], tolerance=0.5) for _ in range(2)
    ]
    assert [fast.report.cached for fast in runs] == [False, True]
    assert torch.equal(runs[0](images), runs[1](images))
