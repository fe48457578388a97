"""Edits are options: by name, by JSON, checked, and applied on the meta device as elsewhere."""

import pytest
import torch
from torch import nn

import vitreous as vt
from tests.family import tiny
from vitreous.compress.edits import EDITS, find_edit
from vitreous.layers.mlp import StarReLU
from vitreous.models.edit import rebuild
from vitreous.weights.structure import differences

EXAMPLES = [vt.Fold(), vt.ReplaceActivation(act="relu")]


def test_every_edit_has_an_example():
    assert {type(edit) for edit in EXAMPLES} == set(EDITS.values())
    assert all(kind.name == name for name, kind in EDITS.items())


@pytest.mark.parametrize("edit", EXAMPLES, ids=lambda edit: edit.name)
def test_json_and_back(edit):
    assert find_edit(edit.to_json()) == find_edit(edit) == edit
    assert edit.to_json()["edit"] == edit.name


def test_by_name():
    assert find_edit("fold") == vt.Fold()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("folt", "unknown edit 'folt'; did you mean 'fold'"),
        ({"edit": "fold", "x": 1}, "Fold has no option 'x'"),
        ({"edit": "replace_activation", "act": "rely"}, "act must be one of .*did you mean 'relu'"),
        ({}, "unknown edit None"),
    ],
)
def test_errors(value, message):
    with pytest.raises(ValueError, match=message):
        find_edit(value)


@pytest.mark.parametrize("edit", EXAMPLES, ids=lambda edit: edit.name)
def test_the_meta_device_gives_the_same_structure(edit):
    model = tiny("fastvit_sa12")
    model.edit(edit)
    with torch.device("meta"):
        twin = rebuild(model.config, model.edits)
    assert not list(differences(model, twin))
    assert list(differences(model, model.config.build()))


def test_folding_keeps_the_answers():
    model = tiny("fastvit_sa12")
    images = torch.randn(1, 3, 64, 64)
    expected = model(images)
    model.edit(vt.Fold())
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["vit_tiny_16", "swin_tiny", "fastvit_sa12", "caformer_s18", "xcit_nano_12_16"])
def test_every_mlp_gets_the_activation(name):
    model = tiny(name)
    model.edit(vt.ReplaceActivation(act="silu"))
    acts = [module.mlp.act for module in model.modules() if hasattr(module, "mlp")]
    assert {type(act) for act in acts} == {nn.SiLU}
    assert not any(act.training for act in acts)
    if name == "caformer_s18":
        assert any(isinstance(module, StarReLU) for module in model.modules()), "those of mixers stay"


@pytest.mark.parametrize(("act", "kind"), [("gelu", nn.GELU), ("relu", nn.ReLU), ("hard_swish", nn.Hardswish)])
def test_activations_by_name(act, kind):
    model = tiny("vit_tiny_16")
    model.edit(vt.ReplaceActivation(act=act))
    assert type(model.blocks[0].mlp.act) is kind


def test_tanh_is_the_approximation():
    model = tiny("vit_tiny_16")
    model.edit(vt.ReplaceActivation(act="gelu_tanh"))
    assert model.blocks[0].mlp.act.approximate == "tanh"


def test_a_model_without_mlps_says_so():
    with pytest.raises(ValueError, match="there is no MLP with an activation inside this"):
        tiny("resnet18").edit(vt.ReplaceActivation(act="relu"))
