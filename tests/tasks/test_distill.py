"""Distillation: formulas, a frozen teacher, images preprocessed for the teacher."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import vitreous as vt
from tests.parity import fill
from vitreous.samples import Batch, Classes, Inputs
from vitreous.spec import Preprocess, Spec
from vitreous.tasks.classify import Classify, ClassifyObjective
from vitreous.tasks.distill import Distill

PREPROCESS = Preprocess(image_size=(32, 32), crop_ratio=1.0)
LABELS = torch.tensor([1, 7, 3])
TARGETS = F.one_hot(LABELS, 10).float()


def tiny(**overrides):
    settings = {"image_size": 32, "patch_size": 8, "dim": 48, "depth": 2, "num_heads": 3, "num_classes": 10}
    return fill(vt.create_model("vit_tiny_16", **settings | overrides))


def batch():
    return Batch(Inputs(torch.randn(3, 3, 32, 32)), Classes(TARGETS))


def prepared(teacher, **settings):
    return Distill(teacher=teacher, **settings).start(Spec(PREPROCESS), "cpu")


def loss_of(objective, student, data):
    return objective.loss(student.outputs(data.inputs), data)["loss"]


def by_hand(pupil, advice, *, kind, temperature=1.0):
    """The distillation loss, written out."""
    if kind == "hard":
        return -pupil.log_softmax(1)[torch.arange(3), advice.argmax(1)].mean()
    p, q = (advice / temperature).softmax(1), (pupil / temperature).softmax(1)
    return temperature**2 * (p * (p / q).log()).sum(1).mean()


@pytest.mark.parametrize("distilled", [False, True], ids=["one head", "own token"])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_loss_by_the_formula(kind, distilled):
    student, teacher, data = tiny(distilled=distilled), tiny(depth=1), batch()
    objective = prepared(teacher, kind=kind, weight=0.3, temperature=2.5, smoothing=0.1)
    heads, advice = student.outputs(data.inputs), teacher(data.images)
    parts = objective.loss(heads, data)
    from_teacher = by_hand(heads["distill" if distilled else "class"], advice, kind=kind, temperature=2.5)
    from_labels = F.cross_entropy(heads["class"], LABELS, label_smoothing=0.1)
    assert next(iter(parts)) == "loss"
    assert torch.allclose(parts["loss"], 0.7 * from_labels + 0.3 * from_teacher, rtol=1e-4)
    assert torch.allclose(parts["label_loss"], from_labels, rtol=1e-4)
    assert torch.allclose(parts["teacher_loss"], from_teacher, rtol=1e-4)


def test_each_head_has_its_own_teacher():
    student = tiny(distilled=True)
    loss_of(prepared(tiny(depth=1), weight=1.0), student, batch()).backward()
    assert student.head.weight.grad.abs().max() == 0
    assert student.distill_head.weight.grad.abs().max() > 0


def test_only_the_student_is_trained():
    student, teacher = tiny(drop_rate=0.1), tiny(depth=1, drop_rate=0.5)
    student.train()
    teacher.train()
    task, data = prepared(teacher), batch()
    loss_of(task, student, data).backward()
    assert all(p.grad is not None for p in student.parameters())
    assert not any(p.requires_grad or p.grad is not None for p in task.teacher.parameters())
    assert torch.equal(task.teacher(data.images), task.teacher(data.images)), "a teacher does not drop out"
    assert teacher.training
    assert all(p.requires_grad for p in teacher.parameters()), "the caller's model stays as it was"


def test_no_loss_for_a_student_that_equals_the_teacher():
    teacher = tiny()
    task = prepared(teacher, weight=1.0)
    assert loss_of(task, teacher, batch()).item() == pytest.approx(0, abs=1e-5)


def test_images_are_renormalized_for_the_teacher():
    teacher = tiny()
    teacher.spec = Spec(Preprocess((32, 32), 1.0, mean=(0.1, 0.5, 0.9), std=(0.5, 0.25, 0.2)))
    student = tiny()
    student.spec = Spec(PREPROCESS)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for_student, for_teacher = (vt.transforms(m)(Image.fromarray(pixels))[None] for m in (student, teacher))
    assert (for_student - for_teacher).abs().max() > 0.5
    assert torch.allclose(prepared(teacher).teacher(for_student), teacher(for_teacher), atol=1e-4)


@pytest.mark.parametrize("size", [(16, 16), (64, 48)])
def test_images_are_resized_for_the_teacher(size):
    teacher, images = tiny(image_size=size), batch().images
    resized = F.interpolate(images, size, mode="bilinear", antialias=True)
    task = prepared(teacher)
    assert torch.allclose(task.teacher(images), teacher(resized), atol=1e-5)


def test_a_teacher_file_is_identified_by_its_hash(tmp_path):
    teacher, path = tiny(depth=1), tmp_path / "teacher.safetensors"
    vt.save(teacher, path)
    task = Distill(teacher=str(path))
    objective, images = task.start(Spec(PREPROCESS), "cpu"), batch().images
    assert torch.allclose(objective.teacher(images), teacher.eval()(images), atol=1e-6)
    assert objective.facts() == prepared(teacher).facts()
    assert objective.facts() != prepared(tiny()).facts()
    assert task == Distill(teacher=str(path)), "the loaded teacher is no setting"
    assert task.to_json()["teacher"] == str(path)
    assert Distill.given("task", task.to_json()) == task
    assert "ViT in memory" in Distill(teacher=teacher).to_json()["teacher"]


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"num_classes": 7}, "teacher has 7 classes, the student 10"),
        ({"num_classes": 0}, "no classifier"),
        ({"num_channels": 1}, "takes 1 channels, the student's images have 3"),
    ],
)
def test_unsuitable_teachers(teacher, message):
    with pytest.raises(ValueError, match=message):
        loss_of(prepared(tiny(**teacher)), tiny(), batch())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "warm"}, "kind must be one of soft, hard"),
        ({"weight": 1.5}, r"weight must lie in \[0, 1\], got 1.5"),
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        Distill(**settings)


def test_missing_teacher():
    with pytest.raises(ValueError, match="needs a teacher"):
        Distill().start(Spec(PREPROCESS), "cpu")


def test_without_weight_there_is_no_teacher():
    objective, data = Distill(weight=0.0, smoothing=0.1).start(Spec(PREPROCESS), "cpu"), batch()
    assert type(objective) is ClassifyObjective
    plain = Classify(smoothing=0.1).start(Spec(PREPROCESS), "cpu")
    student = tiny()
    assert torch.equal(loss_of(objective, student, data), loss_of(plain, student, data))


def test_a_student_is_decoded_as_a_classifier():
    assert Distill.output_task == "classify"
    outputs = {"class": torch.randn(2, 10), "distill": torch.randn(2, 10)}
    assert Distill.decode(outputs, Spec()) == Classify.decode(outputs, Spec())
