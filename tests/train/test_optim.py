"""Optimizers: parameter groups, learning rates, weight decay, freezing, weight averaging."""

import re

import pytest
import torch
from torch import nn

import vitreous as vt
from vitreous.train.ema import ExponentialMovingAverage
from vitreous.train.muon import MuonStep, orthogonalize
from vitreous.train.optim import (
    OPTIMIZERS,
    SGD,
    AdamW,
    Muon,
    Optimizer,
    freeze,
    keep_frozen_in_eval,
    parameter_roles,
    set_learning_rate,
    trainable_parameters,
)


def small(**options):
    settings = {"image_size": 32, "patch_size": 8, "dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}
    return vt.create_model("vit_tiny_16", **(settings | options))


def groups_of(model, optimizer, layer_decay=1.0):
    """Parameter name → (learning rate, weight decay, torch optimizer class)."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: (group["lr"], group["weight_decay"], type(made).__name__)
        for made in optimizer.build(trainable_parameters(model, layer_decay), fused=False)
        for group in made.param_groups
        for p in group["params"]
    }


def test_only_matrices_decay():
    model = small(num_registers=2, layer_scale=0.1)
    decays = {name for name, (_, decay, _) in groups_of(model, AdamW(weight_decay=0.1)).items() if decay}
    expected = {name for name, p in model.named_parameters() if p.ndim > 1 and name.endswith("weight")}
    assert decays == expected
    assert "class_token" not in decays
    assert not any("position" in name for name in decays)


def test_layer_decay_by_hand():
    found = groups_of(small(), AdamW(lr=1.0), layer_decay=0.5)
    assert found["head.weight"][0] == found["norm.weight"][0] == 1.0
    assert found["blocks.2.mlp.fc1.weight"][0] == 0.5
    assert found["blocks.0.mlp.fc1.weight"][0] == 0.125
    assert found["stem.proj.weight"][0] == found["class_token"][0] == 0.0625


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_parameter_is_in_one_group(optimizer):
    model = small()
    made = optimizer.build(trainable_parameters(model, 0.5), fused=False)
    parameters = [p for each in made for group in each.param_groups for p in group["params"]]
    assert len(parameters) == len(list(model.parameters()))
    assert {id(p) for p in parameters} == {id(p) for p in model.parameters()}


def test_options_reach_torch():
    (adam,) = AdamW(lr=0.3, betas=(0.5, 0.6)).build(trainable_parameters(small(), 1.0), fused=True)
    assert (adam.defaults["lr"], adam.defaults["betas"], adam.defaults["fused"]) == (0.3, (0.5, 0.6), True)
    (sgd,) = SGD(momentum=0.7).build(trainable_parameters(small(), 1.0), fused=True)
    assert (sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.7, True)
    (still,) = SGD(momentum=0).build(trainable_parameters(small(), 1.0), fused=True)
    assert not still.defaults["nesterov"]
    matrices, others = Muon(lr=0.1, matrix_lr=0.2, betas=(0.5, 0.6)).build(
        trainable_parameters(small(), 1.0), fused=True
    )
    assert {group["peak_lr"] for group in matrices.param_groups} == {0.2}
    assert {group["peak_lr"] for group in others.param_groups} == {0.1}
    assert (others.defaults["betas"], others.defaults["fused"]) == ((0.5, 0.6), True)


@pytest.mark.parametrize("given", ["sgd", SGD(), {"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9}])
def test_chosen_by_name_by_object_and_by_json(given):
    chosen = vt.TrainConfig(optimizer=given).optimizer
    assert chosen == SGD()
    assert Optimizer.given("optimizer", chosen.to_json()) == chosen


class Signs(Optimizer):
    """A custom optimizer that is not in ``OPTIMIZERS``."""

    name = "signs"

    def build(self, parameters, *, fused):
        return [torch.optim.Rprop(self.groups(parameters, self.lr))]


def test_custom_optimizer():
    chosen = vt.TrainConfig(optimizer=Signs(lr=0.5)).optimizer
    (made,) = chosen.build(trainable_parameters(small(), 1.0), fused=False)
    assert isinstance(made, torch.optim.Rprop)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("adam", "must be an optimizer's name or options, got 'adam'; did you mean 'adamw'?"),
        ({"lr": 0.1}, "got None; known: adamw, muon, sgd"),
        ({"optimizer": "sgd", "beta": 0.1}, "SGD has no option 'beta'"),
        ({"optimizer": "adamw", "lr": 0}, "lr must be positive, got 0"),
        ({"optimizer": "adamw", "betas": (0.9, 1.0)}, "each of betas must lie in [0, 1), got 1.0"),
        ({"optimizer": "adamw", "betas": [0.9]}, "betas must be 2 values, got [0.9]"),
        ({"optimizer": "sgd", "weight_decay": -1}, "weight_decay must not be negative"),
    ],
)
def test_invalid_optimizers(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        vt.TrainConfig(optimizer=given)


def test_nothing_left_to_train_is_an_error():
    model = small().requires_grad_(False)
    with pytest.raises(ValueError, match="every parameter is frozen"):
        trainable_parameters(model, 1.0)


def test_muon_optimizes_hidden_matrices():
    kinds = {name: kind for name, (_, _, kind) in groups_of(small(), Muon()).items()}
    assert kinds["blocks.1.mlp.fc1.weight"] == "MuonStep"
    assert kinds["head.weight"] == kinds["stem.proj.weight"] == kinds["norm.bias"] == "AdamW"


def test_muon_reads_convolutions_as_matrices():
    kinds = {name: kind for name, (_, _, kind) in groups_of(small(stem="conv"), Muon()).items()}
    assert kinds["stem.convs.1.0.weight"] == "MuonStep"
    assert kinds["stem.convs.0.0.weight"] == "AdamW", "its input is pixels"
    kinds = {name: kind for name, (_, _, kind) in groups_of(small(stem="residual"), Muon()).items()}
    assert kinds["stem.stages.0.widen.weight"] == "MuonStep", "its input is whitened pixels"


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (8, 4, 3, 3)])
def test_orthogonalized_singular_values_are_about_one(shape):
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)).flatten(1))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_a_step_of_muon_by_hand():
    weight = nn.Parameter(torch.randn(6, 4))
    gradient = torch.randn(6, 4)
    before = weight.detach().clone()
    weight.grad = gradient.clone()
    MuonStep([{"params": [weight]}], lr=0.1, weight_decay=0.5).step()
    update = orthogonalize(0.05 * gradient + 0.95 * (0.05 * gradient))
    expected = before * (1 - 0.1 * 0.5) - 0.1 * (6 / 4) ** 0.5 * update
    torch.testing.assert_close(weight.detach(), expected)


def test_learning_rate_factor_scales_every_group():
    made = AdamW(lr=1.0).build(trainable_parameters(small(), 0.5), fused=False)
    set_learning_rate(made, 0.1)
    rates = {round(group["lr"], 6) for optimizer in made for group in optimizer.param_groups}
    assert rates == {0.1, 0.05, 0.025, 0.0125, 0.00625}


@pytest.mark.parametrize(
    ("blocks", "learning"),
    [
        (0, {"stem", "class_token", "position", "blocks.0", "blocks.1", "blocks.2", "norm", "head"}),
        (2, {"blocks.2", "norm", "head"}),
        (-1, {"head"}),
    ],
)
def test_freezing(blocks, learning):
    model = small()
    freeze(model, blocks)
    parts = {
        ".".join(name.split(".")[: 2 if name.startswith("blocks") else 1])
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    assert parts == learning


def test_frozen_norms_keep_their_statistics():
    model = small(stem="residual")
    freeze(model, -1)
    model.train()
    keep_frozen_in_eval(model)
    before = model.stem.stages[0].norm1.running_mean.clone()
    model(torch.randn(4, 3, 32, 32) + 5)
    assert torch.equal(before, model.stem.stages[0].norm1.running_mean)


def test_too_many_frozen_blocks_are_an_error():
    with pytest.raises(ValueError, match="the model has 3 blocks"):
        freeze(small(), 4)


def test_roles_follow_the_order_of_the_network():
    depths = {name: role.depth for name, role in parameter_roles(small()).items()}
    assert depths["stem.proj.weight"] == 0
    assert depths["blocks.0.norm1.weight"] == 1
    assert depths["norm.weight"] == depths["head.bias"] == 4


def test_moving_average_by_hand_and_swapped_in():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = ExponentialMovingAverage(model, 0.9)
    expected = 0.0
    for step in range(30):
        nn.init.constant_(model.weight, step + 1.0)
        average.update(model, step)
        keep = min(0.9, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * (step + 1)
    assert average.values["weight"].item() == pytest.approx(expected, rel=1e-5)
    with average.applied_to(model):
        assert model.weight.item() == pytest.approx(expected, rel=1e-5)
    assert model.weight.item() == 30


def test_moving_average_copies_integer_buffers():
    model = nn.BatchNorm2d(2)
    average = ExponentialMovingAverage(model, 0.9)
    model(torch.randn(3, 2, 4, 4))
    average.update(model, 0)
    assert average.values["num_batches_tracked"].item() == 1
