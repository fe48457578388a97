"""Operation and memory counters against known values."""

import numpy as np
import pytest
import torch
from torch import nn

import vitreous as vt
from vitreous.lab.instruments.counting import Memory, forward_flops, power, training_flops
from vitreous.lab.instruments.photo_predictions import match_ordered_classes


def test_power():
    assert power(2, 3, 24) == pytest.approx(3)


def test_flops_of_a_submodule_and_of_the_model():
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))
    assert forward_flops(net, torch.zeros(2, 3)) == 2 * 2 * (3 * 5 + 5 * 7)
    assert forward_flops(net, torch.zeros(2, 3), part="1") == 2 * 2 * 5 * 7


def test_training_flops_are_three_times_the_forward_flops():
    net, x = nn.Linear(3, 5), torch.zeros(2, 3, requires_grad=True)
    assert training_flops(lambda: net(x)) == 3 * forward_flops(net, x)


def test_memory_counts_live_tensors_once_and_excludes_given_ones():
    given = torch.zeros(100)
    with Memory([given]) as memory:
        made = given + 1
        view = made[:10]
        del made
        assert memory.now == 400  # the view keeps the whole storage alive
        del view
        assert memory.now == 0
    assert memory.peak == 400


def test_memory_after_the_forward_pass_matches_the_formulas():
    model = vt.create_model("vit_tiny_16", image_size=64, depth=2, num_classes=10)
    images = torch.zeros(1, 3, 64, 64)
    with Memory([images, *model.parameters()]) as memory:
        output = model.head(model.pooled(model.features(images)))
    cost = vt.cost("vit_tiny_16", 64, depth=2, num_classes=10)
    assert memory.now == pytest.approx(cost.activation_bytes + output.nbytes, rel=0.01)


def test_classes_are_matched_in_order():
    draws = np.random.default_rng(0)
    true = np.sort(draws.choice(50, 20, replace=False))
    folders = np.repeat(np.arange(20), 2)
    logits = draws.normal(size=(40, 50))
    logits[np.arange(40), true[folders]] += 3
    assert (match_ordered_classes(logits, folders) == true[folders]).mean() > 0.9
