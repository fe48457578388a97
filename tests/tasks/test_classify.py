"""Classification: soft targets, label smoothing, multiple heads, metrics and predictions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitreous as vt
from vitreous.models.base import mean_logits
from vitreous.samples import Batch, Classes, Inputs, Masks
from vitreous.spec import Labels, Spec
from vitreous.tasks.base import OutputsModule
from vitreous.tasks.classify import Classify

LABELS = torch.tensor([2, 0, 1, 4])
ONE_HOT = F.one_hot(LABELS, 10).float()


def tiny(**overrides):
    return vt.create_model(
        "vit_tiny_16", image_size=32, patch_size=8, dim=48, depth=2, num_heads=3, num_classes=10, **overrides
    )


def batch(targets):
    return Batch(Inputs(torch.zeros(len(targets), 3, 8, 8)), Classes(targets))


def loss_of(outputs, targets, **settings):
    return Classify(**settings).start(Spec(), "cpu").loss(outputs, batch(targets))["loss"]


def measures(logits, targets, classes):
    meter = Classify(smoothing=0.1).start(Spec(), "cpu").meter(classes)
    meter.add({"class": logits}, batch(targets), np.arange(len(logits)))
    return meter.result()


@pytest.mark.parametrize("distilled", [False, True])
def test_combined_outputs_equal_the_forward_pass(distilled):
    model, images = tiny(distilled=distilled), torch.randn(4, 3, 32, 32)
    outputs = OutputsModule(model)(Inputs(images))
    assert len(outputs) == 1 + distilled
    assert torch.allclose(mean_logits(outputs), model(images), atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_cross_entropy_of_labels(smoothing):
    logits = torch.randn(4, 10, requires_grad=True)
    loss = loss_of({"class": logits}, ONE_HOT, smoothing=smoothing)
    assert torch.allclose(loss, F.cross_entropy(logits, LABELS, label_smoothing=smoothing))
    assert loss.requires_grad


def test_mixed_targets_by_the_formula():
    logits, targets = torch.randn(4, 10), 0.3 * ONE_HOT + 0.7 * ONE_HOT.roll(1, 0)
    expected = -((0.8 * targets + 0.02) * logits.log_softmax(1)).sum() / 4
    assert torch.allclose(loss_of({"class": logits}, targets, smoothing=0.2), expected)


def test_every_head_learns_from_the_labels():
    first, second = torch.randn(4, 10), torch.randn(4, 10)
    loss = loss_of({"class": first, "distill": second}, ONE_HOT)
    assert torch.allclose(loss, (F.cross_entropy(first, LABELS) + F.cross_entropy(second, LABELS)) / 2)


def test_the_log_shows_the_accuracy_of_all_heads_together():
    outputs = {"class": 2 * ONE_HOT, "distill": 3 * ONE_HOT.roll(1, 1)}  # the second is more confident, and wrong
    objective = Classify().start(Spec(), "cpu")
    assert objective.monitor(outputs, batch(ONE_HOT))["accuracy"] == 0
    assert objective.monitor({"class": ONE_HOT}, batch(ONE_HOT))["accuracy"] == 1


def test_metrics_start_with_accuracy():
    logits = 10 * ONE_HOT.clone()
    logits[0] = torch.arange(10.0, 0, -1)  # the true class comes third
    found = measures(logits, ONE_HOT, tuple("abcdefghij"))
    assert next(iter(found)) == "accuracy"
    assert found["accuracy"] == 0.75
    assert found["top5"] == 1.0
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, LABELS)), rel=1e-6)
    assert 0 < found["calibration_error"] < 0.25
    assert [metric.higher_is_better for metric in found.values()] == [True, True, False, False]
    assert "top5" not in measures(torch.randn(3, 5), torch.eye(5)[:3], tuple("abcde"))


@pytest.mark.parametrize("top", [1, 2, 9])
def test_predictions_are_the_softmax_best_first(top):
    heads = {"class": torch.tensor([[1.0, 3.0, 0.0]]), "distill": torch.tensor([[1.0, 1.0, 4.0]])}
    (found,) = Classify.decode(heads, Spec(labels=Labels(("a", "b", "c"))), top=top)
    shares = torch.tensor([1.0, 2.0, 2.0]).softmax(0)
    assert len(found.classes) == min(top, 3)
    assert set(found.classes[:2]) <= {"b", "c"}
    assert found.probabilities[0] == pytest.approx(shares.max().item())
    assert found.best == found.classes[0]


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_smoothing_bounds(smoothing):
    with pytest.raises(ValueError, match=r"smoothing must (lie in \[0, 1\)|be a number), got"):
        Classify(smoothing=smoothing)


def test_wrong_number_of_classes():
    with pytest.raises(ValueError, match="num_classes=10"):
        loss_of({"class": torch.zeros(4, 7)}, ONE_HOT)


def test_wrong_kind_of_target():
    masks = Batch(Inputs(torch.zeros(1, 3, 4, 4)), Masks(torch.zeros(1, 4, 4, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="needs class labels, the data has a mask per image"):
        Classify().start(Spec(), "cpu").loss({"class": torch.zeros(1, 3)}, masks)
