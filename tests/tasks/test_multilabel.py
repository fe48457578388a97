"""Multi-label: unknown labels are ignored, and the loss does not depend on how a batch is split."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitreous.samples import Batch, Inputs, MultiLabels
from vitreous.spec import Spec
from vitreous.tasks.multilabel import MultiLabel

NAN = math.nan
TARGETS = torch.tensor([[1, 0, NAN], [0, NAN, NAN], [1, 1, 0], [0, 0, 0]])


def loss_of(logits, targets, **settings):
    return MultiLabel(**settings).start(Spec(), "cpu").loss({"class": logits}, batch(targets))["loss"]


def batch(targets):
    return Batch(Inputs(torch.zeros(len(targets), 3, 8, 8)), MultiLabels(targets))


def measured(logits, targets, classes):
    meter = MultiLabel().start(Spec(), "cpu").meter(classes)
    meter.add({"class": logits}, batch(targets), np.arange(len(logits)))
    return meter.result()


def test_loss_by_a_loop():
    logits, expected = torch.randn(4, 3), 0.0
    for z, t in zip(logits.flatten().tolist(), TARGETS.flatten().tolist(), strict=True):
        probability = 1 / (1 + math.exp(-z))
        if not math.isnan(t):
            expected -= 3 * t * math.log(probability) + (1 - t) * math.log(1 - probability)
    assert loss_of(logits, TARGETS, positive_weight=3.0).item() == pytest.approx(expected / 12, rel=1e-5)


def test_without_unknowns_it_is_binary_cross_entropy():
    logits, targets = torch.randn(4, 3), TARGETS.nan_to_num(0.5)
    assert torch.allclose(loss_of(logits, targets), F.binary_cross_entropy_with_logits(logits, targets))


def test_unknown_labels_have_no_gradient():
    logits = torch.randn(4, 3, requires_grad=True)
    loss_of(logits, TARGETS).backward()
    assert torch.equal(logits.grad == 0, TARGETS.isnan())
    nothing_known = loss_of(logits, torch.full((4, 3), NAN))
    assert nothing_known == 0


def test_the_loss_is_the_mean_over_parts():
    logits = torch.randn(4, 3)
    halves = [loss_of(logits[part], TARGETS[part]) for part in (slice(0, 2), slice(2, 4))]
    assert torch.allclose(loss_of(logits, TARGETS), sum(halves) / 2)


def test_metrics_start_with_the_mean_auroc_where_defined():
    logits = torch.tensor([[2.0, 1, 5], [1.0, 9, 5], [3.0, 0, 5], [2.5, 2, 4]])
    measures = measured(logits, TARGETS, ("cat", "dog", "eel"))
    assert next(iter(measures)) == "auroc"
    assert measures["auroc/cat"] == 0.75
    assert measures["auroc/dog"] == 0.0
    assert "auroc/eel" not in measures
    assert measures["auroc"] == 0.375
    assert measures["average_precision"] == pytest.approx(((1 + 2 / 3) / 2 + 1 / 3) / 2)
    assert measures["loss"] == pytest.approx(loss_of(logits, TARGETS).item())
    assert math.isnan(measured(logits, torch.zeros(4, 3), ("cat", "dog", "eel"))["auroc"])


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, NAN])
def test_positive_weight_is_positive(weight):
    with pytest.raises(ValueError, match=r"positive_weight must be (positive|a number), got"):
        MultiLabel(positive_weight=weight)
