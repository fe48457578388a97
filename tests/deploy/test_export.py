"""An exported file computes what the model computes and holds its preprocessing, or is not written."""

import copy
import json
import re
import subprocess
import sys
from dataclasses import replace

import jaxtyping
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import vitreous as vt
from tests.family import SMALLEST, small, tiny
from vitreous.deploy import formats
from vitreous.deploy.engine import EngineUnavailable
from vitreous.deploy.export import ExportMismatch, export, read_spec, worst_relative_error
from vitreous.deploy.onnx_runtime import to_onnx_runtime
from vitreous.deploy.tracing import why_fixed


@pytest.fixture(autouse=True)
def _allow_symbolic_sizes(monkeypatch):
    """Tracing passes symbolic sizes where signatures say int."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def model():
    """A model in training mode, with labels and a preprocessing of its own."""
    model = small("vit_tiny_16", depth=1, distilled=True).train()
    model.name_classes(["ant", "bee", "cat", "dog", "eel", "fox", "gnu"])
    model.spec = replace(model.spec, preprocess=replace(model.spec.preprocess, mean=(0.1, 0.2, 0.3)))
    return model


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    """The model, a copy of its weights from before the export, and the result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        before = copy.deepcopy(model.state_dict())
        result = export(model, tmp_path_factory.mktemp("exported") / "model.onnx")
    return model, before, result


def run(path, images):
    return torch.from_numpy(onnxruntime.InferenceSession(path).run(None, {"images": images.numpy()})[0])


def test_agrees_on_batches_and_sizes_that_were_never_checked(made):
    model, _, result = made
    model = copy.deepcopy(model).eval()
    assert result.error < 1e-5
    assert result.multiple_of == (16, 16)
    for shape in ((3, 64, 64), (7, 48, 112), (1, 128, 32), (2, 16, 16)):
        images = torch.randn(shape[0], 3, *shape[1:])
        assert worst_relative_error(run(result.path, images), model(images).detach()) < 1e-5
    assert {check.batch for check in result.checks} == {1, 2, 5}
    assert any(check.image_size[0] != check.image_size[1] for check in result.checks)


def test_the_file_rejects_sides_that_are_not_multiples_of_the_stride(made):
    with pytest.raises(Exception, match="must_be_multiples_of_16"):
        run(made[2].path, torch.randn(1, 3, 72, 64))


def test_the_model_is_left_as_it_was(made):
    model, before, _ = made
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_file_holds_the_preprocessing(made):
    model, _, result = made
    assert read_spec(result.path) == model.spec
    metadata = onnxruntime.InferenceSession(result.path).get_modelmeta().custom_metadata_map
    assert json.loads(metadata["preprocess"])["mean"] == [0.1, 0.2, 0.3]
    assert json.loads(metadata["labels"])[0] == "ant"
    assert model.config.override(**json.loads(metadata["config"])) == model.config
    assert metadata["family"] == "vit"
    assert json.loads(metadata["edits"]) == []


def test_it_runs_where_vitreous_and_torch_are_not(made):
    code = (
        "import sys, numpy, onnxruntime; sys.modules['torch'] = sys.modules['vitreous'] = None; "
        "session = onnxruntime.InferenceSession(sys.argv[1]); "
        "print(session.run(None, {'images': numpy.zeros((2, 3, 64, 64), 'f')})[0].shape)"
    )
    assert subprocess.check_output([sys.executable, "-c", code, made[2].path], text=True).strip() == "(2, 7)"


def test_a_file_that_disagrees_is_not_written(model, tmp_path, monkeypatch):
    """An exporter that loses a bias; an existing file stays."""
    right = formats.to_onnx

    def wrong(program, output):
        model = right(program)
        bias = next(t for t in model.graph.initializer if t.name.endswith("head.bias"))
        bias.CopyFrom(onnx.numpy_helper.from_array(np.zeros(7, "f"), bias.name))
        return model

    monkeypatch.setattr(formats, "to_onnx", wrong)
    (tmp_path / "model.onnx").write_text("older")
    with pytest.raises(ExportMismatch, match=r"differs from the original by .* at batch .*, 64×64 pixels"):
        export(model, tmp_path / "model.onnx", sizes="fixed")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "older"


def test_nothing_is_left_when_the_exporter_breaks(model, tmp_path, monkeypatch):
    def broken(program, output):
        raise RuntimeError("no such operator\nand much more")

    monkeypatch.setattr(formats, "to_onnx", broken)
    with pytest.raises(ValueError, match=r"^ViT cannot be exported: no such operator$"):
        export(model, tmp_path / "model.onnx", sizes="fixed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "wanted", "error"), [(1.0, 1.0, 0), (1.1, 1.0, 0.1), (np.nan, 1.0, np.inf)])
def test_worst_relative_error(given, wanted, error):
    rows = torch.ones(2, 5)
    assert worst_relative_error(torch.stack([rows[0], given * rows[1]]), wanted * rows) == pytest.approx(
        error, abs=1e-6
    )


ERRORS = [
    ("model.onx", {}, "should end in .onnx or .pt2; did you mean '.onnx'"),
    ("model.onnx", {"format": "aoit"}, "unknown format 'aoit'; did you mean 'aoti'"),
    ("model.onnx", {"format": "aoti"}, "a file of format 'aoti' ends in .pt2, got model.onnx"),
    ("nowhere/model.onnx", {}, "there is no folder .*nowhere"),
    ("folder.onnx", {}, "it is a folder"),
    ("model.onnx", {"image_size": 0.5}, "image_size must be a positive int"),
    ("model.onnx", {"sizes": "all"}, "sizes must be one of auto, any, fixed; got 'all'"),
    ("model.onnx", {"batches": ()}, "batches must be positive batch sizes"),
]


@pytest.mark.parametrize(("name", "options", "message"), ERRORS)
def test_errors_of_one_line(model, tmp_path, name, options, message):
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ValueError, match=message) as caught:
        export(model, tmp_path / name, **options)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written(model, tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    with pytest.raises(ValueError, match=r"cannot write .*: Permission denied; choose another folder"):
        export(model, tmp_path / "model.onnx")


def test_missing_packages_and_compilers_are_named(model, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler, .*; install g\+\+ or clang, or export to .onnx"):
        export(model, tmp_path / "model.pt2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"onnxscript and onnxruntime; install with pip install 'vitreous\[export\]'"):
        export(model, tmp_path / "model.onnx")
    with pytest.raises(EngineUnavailable, match="ONNX Runtime cannot run it: ONNX needs"):
        to_onnx_runtime(model, torch.randn(1, 3, 64, 64))


def test_only_models_are_exported(tmp_path):
    with pytest.raises(ValueError, match="export needs a Vitreous model, got Linear"):
        export(torch.nn.Linear(2, 2), tmp_path / "model.onnx")


def test_a_foreign_file_has_no_spec(tmp_path):
    graph = onnx.helper.make_graph([], "empty", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match="was not written by vitreous export"):
        read_spec(tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match="there is no file"):
        read_spec(tmp_path / "nothing.onnx")


def test_the_engine_takes_any_batch(model):
    plain = copy.deepcopy(model).eval()
    engine = to_onnx_runtime(model, torch.randn(1, 3, 64, 64))
    assert list(engine.parameters()) == []
    for batch in (1, 3):
        images = torch.randn(batch, 3, 64, 64)
        assert worst_relative_error(engine(images), plain(images).detach()) < 1e-5


@pytest.mark.slow
def test_int8_is_near_and_not_the_same():
    torch.manual_seed(0)
    model = vt.create_model("vit_tiny_16", depth=2, image_size=64).eval()
    images = torch.randn(4, 3, 64, 64)
    error = worst_relative_error(to_onnx_runtime(model, images, int8=True)(images), model(images).detach())
    assert 1e-4 < error < 0.1


ANY_SIZE = {
    *("vit_tiny_16", "deit_tiny_16", "dinov2_small_14", "vit_tiny_r_s16"),
    *("xcit_nano_12_16", "resnet18", "hybrid_resnet18_tiny"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_every_family_agrees(name, tmp_path):
    model = tiny(name)
    result = export(model, tmp_path / "model.onnx", image_size=(64, 64) if "_14" not in name else (56, 56))
    assert result.error < 1e-4
    assert (result.multiple_of is not None) == (name in ANY_SIZE), result.why_fixed
    images = torch.randn(3, 3, *result.image_size)
    assert worst_relative_error(run(result.path, images), model(images).detach()) < 1e-4


@pytest.mark.slow
def test_a_compiled_package_agrees_and_has_metadata(tmp_path):
    model = small("vit_tiny_16", depth=1)
    result = export(model, tmp_path / "model.pt2")
    assert result.format == "aoti"
    assert result.multiple_of == (16, 16)
    assert read_spec(result.path) == model.spec
    package = torch._inductor.aoti_load_package(str(result.path))
    images = torch.randn(3, 3, 48, 112)
    assert worst_relative_error(package(images), model(images).detach()) < 1e-5


FIXED = [
    ("swin_tiny", {}, 224, "windows"),
    ("pvt_v2_b0", {}, 224, "takes minutes"),
    ("vit_tiny_16", {"mixer": "window"}, 224, "windows"),
    ("vit_tiny_16", {}, 100, "multiples of 16×16"),
    ("resnet18", {}, 32, "at least two"),
    ("vit_tiny_16", {}, 224, "^$"),
]


@pytest.mark.parametrize(("name", "options", "side", "reason"), FIXED)
def test_why_sizes_are_fixed(name, options, side, reason):
    with torch.device("meta"):
        model = vt.create_model(name, **options)
    assert re.search(reason, why_fixed(model, (side, side)))
