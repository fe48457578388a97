"""Classification: soft targets, smoothing, several heads, and what is measured."""

import pytest
import torch
import torch.nn.functional as F

import vitreous as vt
from vitreous.spec import Batch
from vitreous.tasks.base import Heads, combine
from vitreous.tasks.classify import Classify

LABELS = torch.tensor([2, 0, 1, 4])
ONE_HOT = F.one_hot(LABELS, 10).float()


def tiny(**overrides):
    return vt.create_model(
        "vit_tiny_16", image_size=32, patch_size=8, dim=48, depth=2, num_heads=3, num_classes=10, **overrides
    )


def says(**heads):
    """A model that gives these logits whatever it sees."""
    return lambda images: heads


@pytest.mark.parametrize("distilled", [False, True])
def test_heads_combine_to_the_models_answer(distilled):
    model, images = tiny(distilled=distilled), torch.randn(4, 3, 32, 32)
    heads = Heads(model)(images)
    assert len(heads) == 1 + distilled
    assert torch.allclose(combine(heads), model(images), atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_cross_entropy_of_labels(smoothing):
    logits = torch.randn(4, 10, requires_grad=True)
    loss, answer = Classify(smoothing).loss(says(**{"class": logits}), Batch(torch.zeros(4, 3, 8, 8), ONE_HOT))
    assert torch.allclose(loss, F.cross_entropy(logits, LABELS, label_smoothing=smoothing))
    assert torch.equal(answer, logits)
    assert loss.requires_grad
    assert not answer.requires_grad


def test_mixed_targets_by_the_formula():
    logits, targets = torch.randn(4, 10), 0.3 * ONE_HOT + 0.7 * ONE_HOT.roll(1, 0)
    loss, _ = Classify(smoothing=0.2).loss(says(**{"class": logits}), Batch(torch.zeros(4), targets))
    expected = -((0.8 * targets + 0.02) * logits.log_softmax(1)).sum() / 4
    assert torch.allclose(loss, expected)


def test_every_head_learns_from_the_labels():
    first, second = torch.randn(4, 10), torch.randn(4, 10)
    loss, answer = Classify().loss(says(**{"class": first, "distill": second}), Batch(torch.zeros(4), ONE_HOT))
    assert torch.allclose(loss, (F.cross_entropy(first, LABELS) + F.cross_entropy(second, LABELS)) / 2)
    assert torch.allclose(answer, (first + second) / 2)


def test_measures_lead_with_accuracy():
    logits = 10 * ONE_HOT.clone()
    logits[0] = torch.arange(10.0, 0, -1)  # the true class comes third
    measures = Classify(smoothing=0.1).measure(logits, ONE_HOT, tuple("abcdefghij"))
    assert next(iter(measures)) == "accuracy"
    assert measures["accuracy"] == 0.75
    assert measures["top5"] == 1.0
    assert measures["loss"] == pytest.approx(float(F.cross_entropy(logits, LABELS)), rel=1e-6)
    assert 0 < measures["calibration_error"] < 0.25
    assert "top5" not in Classify().measure(torch.randn(3, 5), torch.eye(5)[:3], tuple("abcde"))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_smoothing_is_a_share(smoothing):
    with pytest.raises(ValueError, match="smoothing must lie between 0 and 1"):
        Classify(smoothing)


def test_the_wrong_number_of_classes_is_said():
    with pytest.raises(ValueError, match="num_classes=10"):
        Classify().loss(says(**{"class": torch.zeros(4, 7)}), Batch(torch.zeros(4), ONE_HOT))
