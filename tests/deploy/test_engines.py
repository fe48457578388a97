"""Predictor, evaluation, embedding and explanation run on any engine; outputs are decoded by the file's task."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import vitreous as vt
from vitreous.data.scenes import ShapesDataset
from vitreous.models.vit import ViTConfig

CONFIG = ViTConfig(image_size=(32, 32), patch_size=(8, 8), dim=32, depth=2, num_heads=2, num_classes=10)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = vt.create_model(CONFIG)
    net.name_classes(vt.Shapes.classes)
    return net.eval()


@pytest.fixture(scope="module")
def images():
    scenes = vt.Shapes(6, (32, 32), seed=2).batch(range(6)).images
    return [Image.fromarray(scene.transpose(1, 2, 0)) for scene in scenes]


@pytest.fixture(scope="module")
def fast(model):
    return vt.accelerate(model, torch.randn(4, 3, 32, 32), "fp32", engines=["native", "eager"])


def test_a_predictor_takes_an_accelerated_model(model, fast, images):
    ours, theirs = vt.Predictor(fast, top=10), vt.Predictor(model, top=10)
    for one, other in zip(ours.predict_many(images), theirs.predict_many(images), strict=True):
        assert one.classes == other.classes
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-3)
    np.testing.assert_allclose(ours.embed(images[0]), theirs.embed(images[0]), atol=1e-4)


def test_evaluation_takes_an_accelerated_model(model, fast):
    data = ShapesDataset(vt.Shapes(40, (32, 32), seed=4))
    ours, theirs = vt.evaluate(fast, data), vt.evaluate(model, data)
    np.testing.assert_allclose(ours.arrays["logits"], theirs.arrays["logits"], rtol=1e-3, atol=1e-4)
    assert ours.metrics["accuracy"] == theirs.metrics["accuracy"]


def test_auto_accelerates_a_plain_model(model, images, monkeypatch):
    asked = []

    def accelerate(net, example, *args, **options):
        asked.append(tuple(example.shape))
        return vt.accelerate(net, example, "fp32", engines=["eager"])

    for module in ("predictor", "evaluate"):
        monkeypatch.setattr(f"vitreous.deploy.{module}.accelerate", accelerate)
    predictor = vt.Predictor(model, engine="auto", batch_size=4)
    found = list(predictor.predict_many(images))
    assert len(found) == 6
    assert asked == [(4, 3, 32, 32)], "with the first batch, once"
    assert predictor.embed(images[0]).shape == (32,)
    assert predictor.embedder.report.engine == "eager", "with the backend chosen for predictions"
    vt.evaluate(model, ShapesDataset(vt.Shapes(8, (32, 32))), engine="auto")
    assert asked[1:] == [(8, 3, 32, 32)]


def test_an_explanation_takes_an_accelerated_model(model, fast, images):
    one, other = (vt.explain(net, images[0], methods=["rollout"]) for net in (fast, model))
    assert one.methods["rollout"].faithfulness == pytest.approx(other.methods["rollout"].faithfulness, abs=1e-3)
    assert torch.equal(one.methods["rollout"].heat, other.methods["rollout"].heat), "maps are the plain model's"


@pytest.mark.parametrize("wrong", [3, None, torch.nn.Linear(2, 2)])
def test_other_objects_are_refused(wrong):
    for use in (vt.Predictor, lambda source: vt.evaluate(source, "digits")):
        with pytest.raises(ValueError, match="expected a weights file, a Vitreous model or an accelerated model, got"):
            use(wrong)


def test_an_unknown_engine_is_refused(model):
    with pytest.raises(ValueError, match="engine must be one of eager, auto, got 'fast'"):
        vt.Predictor(model, engine="fast")


@pytest.fixture
def several_labels(tmp_path):
    """A multi-label model whose logits are (6, 6, 6) for any image."""
    net = vt.create_model(CONFIG, num_classes=3)
    net.name_classes(["cardiomegaly", "effusion", "edema"])
    net.spec = vt.Spec(net.spec.preprocess, net.spec.labels, "multilabel")
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.constant_(net.head.bias, 6.0)
    vt.save(net, tmp_path / "labels.safetensors")
    return tmp_path / "labels.safetensors"


def test_multilabel_models_predict_with_a_sigmoid_per_label(several_labels, images):
    found = vt.Predictor(several_labels)(images[0])
    assert isinstance(found, vt.LabelScores)
    assert found.probabilities == pytest.approx((0.99753,) * 3, abs=1e-4)
    assert set(found.present) == {"cardiomegaly", "effusion", "edema"}
    explanation = vt.explain(several_labels, images[0], methods=["rollout"], target="edema")
    assert explanation.answer.probabilities.tolist() == pytest.approx([0.99753] * 3, abs=1e-4)
    assert explanation.methods["rollout"].deletion[0] == pytest.approx(0.99753, abs=1e-4), (
        "curves follow the sigmoid too"
    )


def with_spec(path, change):
    """A copy of a weights file whose spec was changed."""
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    spec = json.loads(metadata["spec"])
    change(spec)
    out = path.with_name("changed.safetensors")
    save_file(tensors, out, {**metadata, "spec": json.dumps(spec)})
    return out


def test_a_file_without_a_task_holds_a_classifier(several_labels, images):
    old = with_spec(several_labels, lambda spec: spec.pop("task"))
    assert isinstance(vt.Predictor(old)(images[0]), vt.ClassScores)


def test_a_task_of_a_newer_version_is_named(several_labels, images):
    newer = with_spec(several_labels, lambda spec: spec.update(task="depth"))
    assert vt.load(newer).spec.task == "depth", "its features can still be used"
    with pytest.raises(ValueError, match="for the task 'depth', which this version of Vitreous does not support"):
        vt.Predictor(newer)(images[0])
