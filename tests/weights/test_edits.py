"""A model remembers its edits, files store them, load replays them; what nothing describes is refused."""

import copy
import functools
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import vitreous as vt
from tests.family import SMALLEST, tiny
from tests.parity import fill
from tests.train.runs import with_training
from vitreous.compress.edits import EDITS
from vitreous.deploy.shortcuts import optimize_for_inference
from vitreous.models.edit import rebuild
from vitreous.models.vit import ViTConfig
from vitreous.runs.prepare import prepare_run
from vitreous.train.loop import Trainer
from vitreous.train.outside import checkpoint_blocks, compile_blocks
from vitreous.train.parallel import World
from vitreous.weights import formats
from vitreous.weights.structure import differences

SIZES = {"image_size": 16, "patch_size": 8, "num_classes": 3, "dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}


def vit(**options):
    return fill(ViTConfig(**SIZES | options).build())


@dataclass(frozen=True, kw_only=True)
class NarrowMlp(vt.Edit):
    """Keep the first hidden units of every MLP."""

    name: ClassVar[str] = "narrow_mlp"
    hidden_dim: int

    def apply(self, model):
        for block in model.blocks:
            mlp, device = block.mlp, block.mlp.fc1.weight.device
            fc1, fc2 = (nn.Linear(16, self.hidden_dim, device=device), nn.Linear(self.hidden_dim, 16, device=device))
            with torch.no_grad():
                fc1.weight.copy_(mlp.fc1.weight[: self.hidden_dim])
                fc1.bias.copy_(mlp.fc1.bias[: self.hidden_dim])
                fc2.weight.copy_(mlp.fc2.weight[:, : self.hidden_dim])
                fc2.bias.copy_(mlp.fc2.bias)
            mlp.fc1, mlp.fc2 = fc1, fc2


@dataclass(frozen=True, kw_only=True)
class KeepHeads(vt.Edit):
    """Keep the first heads of the first block's attention."""

    name: ClassVar[str] = "keep_heads"
    heads: int

    def apply(self, model):
        mixer = model.blocks[0].mixer
        qkv, proj, device = mixer.qkv, mixer.proj, mixer.proj.weight.device
        width = proj.in_features // mixer.num_heads * self.heads
        mixer.qkv, mixer.proj = nn.Linear(16, 3 * width, device=device), nn.Linear(width, 16, device=device)
        with torch.no_grad():
            mixer.qkv.weight.copy_(qkv.weight.unflatten(0, (3, -1))[:, :width].flatten(0, 1))
            mixer.qkv.bias.copy_(qkv.bias.unflatten(0, (3, -1))[:, :width].flatten(0, 1))
            mixer.proj.weight.copy_(proj.weight[:, :width])
            mixer.proj.bias.copy_(proj.bias)
        mixer.num_heads = self.heads


@dataclass(frozen=True, kw_only=True)
class ScaleInput(vt.Edit):
    """A factor that lies in a buffer which no file holds."""

    name: ClassVar[str] = "scale_input"
    factor: float

    def apply(self, model):
        model.stem = nn.Sequential(Scale(self.factor), model.stem)


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.register_buffer("factor", torch.full((1,), factor), persistent=False)

    def forward(self, x):
        return x * self.factor


@pytest.fixture
def own_edits(monkeypatch):
    for kind in (NarrowMlp, KeepHeads, ScaleInput):
        monkeypatch.setitem(EDITS, kind.name, kind)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def images(side=16):
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def assert_survives(model, path):
    vt.save(model, path)
    again = vt.load(path)
    assert (again.config, again.edits, again.spec) == (model.config, model.edits, model.spec)
    assert torch.equal(again.eval()(images()), model.eval()(images()))
    assert not list(differences(again, model))
    return again


EDITED = {
    "no parameters": [vt.ReplaceActivation(act="relu")],
    "other shapes": [NarrowMlp(hidden_dim=7)],
    "in order": [NarrowMlp(hidden_dim=7), vt.ReplaceActivation(act="relu"), NarrowMlp(hidden_dim=5)],
    "a buffer of its own": [ScaleInput(factor=0.5)],
}


@pytest.mark.parametrize("edits", EDITED.values(), ids=EDITED)
def test_an_edited_model_is_saved_and_loaded(edits, path, own_edits):
    model = vit()
    with torch.no_grad():
        before = model(images())
    for edit in edits:
        model.edit(edit)
    assert model.edits == tuple(edits)
    again = assert_survives(model, path)
    assert not torch.allclose(again(images()), before, rtol=1e-3)


def test_heads_that_are_gone_stay_gone(path, own_edits):
    model = vit()
    model.edit(KeepHeads(heads=1))
    vt.save(model, path)
    again = vt.load(path)
    assert again.blocks[0].mixer.qkv.weight.shape == (3 * 8, 16)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    assert (again.blocks[0].mixer.num_heads, again.blocks[1].mixer.num_heads) == (1, 2)


def test_other_options_with_the_same_edits(path, own_edits):
    model = vit()
    model.edit(NarrowMlp(hidden_dim=7))
    vt.save(model, path)
    again = vt.load(path, num_classes=5, image_size=32)
    assert again.edits == model.edits
    assert again(images(32)).shape == (2, 5)
    assert torch.equal(again.blocks[1].mlp.fc2.weight, model.blocks[1].mlp.fc2.weight)


def test_a_new_head_after_an_edit(path, own_edits):
    model = vit()
    model.edit(NarrowMlp(hidden_dim=7))
    model.reset_head(9)
    assert_survives(model, path)


def test_a_copy_has_the_edits_and_a_failed_edit_is_not_remembered():
    model = vit()
    model.edit(vt.ReplaceActivation(act="relu"))
    assert copy.deepcopy(model).edits == model.edits == (vt.ReplaceActivation(act="relu"),)
    with pytest.raises(ValueError, match="nothing to fold"):
        model.edit(vt.Fold())
    assert model.edits == (vt.ReplaceActivation(act="relu"),)
    assert vit().edits == ()


def test_weights_of_an_edited_model_need_the_same_edits(path):
    edit, model = vt.ReplaceActivation(act="relu"), vit()
    vt.save(model, path)
    model.edit(edit)
    vt.load_weights(model, path)  # what was not edited fits into what is
    vt.save(model, path)
    with pytest.raises(ValueError, match=r"the edits ReplaceActivation\(act='relu'\); load it with vt.load"):
        vt.load_weights(vit(), path)
    vt.load_weights(model, path)


@dataclass(frozen=True, kw_only=True)
class OwnConfig(ViTConfig):
    """A family that this library does not know."""


def test_a_config_of_ones_own(path):
    model = fill(OwnConfig(**SIZES).build())
    model.edit(vt.ReplaceActivation(act="relu"))
    vt.save(model, path)
    again = vt.load(path, model=OwnConfig(**SIZES)).eval()
    assert again.edits == model.edits
    assert torch.equal(again(images()), model(images()))


# What save refuses


def swap_class(model):
    model.blocks[1].mlp.__class__ = type("Other", (type(model.blocks[1].mlp),), {})


def grow_a_layer(model):
    model.blocks.append(copy.deepcopy(model.blocks[0]))


CHANGES = {
    "activation": (
        lambda model: setattr(model.blocks[1].mlp, "act", nn.ReLU()),
        r"blocks.1.mlp.act is ReLU\(\), expected GELU\(approximate='none'\)",
    ),
    "approximation": (
        lambda model: setattr(model.blocks[0].mlp, "act", nn.GELU("tanh")),
        r"blocks.0.mlp.act.approximate is 'tanh', expected 'none'",
    ),
    "part more": (lambda model: setattr(model, "more", nn.Identity()), r"more \(Identity\(\)\) is unexpected"),
    "block more": (grow_a_layer, r"blocks.2 \(PreNormBlock\(\)\) is unexpected"),
    "block less": (lambda model: model.blocks.pop(1), r"blocks.1 \(PreNormBlock\(\)\) is missing"),
    "head": (lambda model: setattr(model, "head", nn.Linear(16, 4)), r"head.weight is \(4, 16\), expected \(3, 16\)"),
    "bias": (lambda model: setattr(model.head, "bias", None), r"head.bias is missing, expected \(3,\)"),
    "heads": (
        lambda model: setattr(model.blocks[0].mixer, "num_heads", 4),
        r"0.mixer.num_heads is 4, expected 2",
    ),
    "eps": (lambda model: setattr(model.blocks[0].norm1, "eps", 0.1), r"blocks.0.norm1.eps is 0.1, expected"),
    "class": (swap_class, r"blocks.1.mlp is Other\(\), expected Mlp\(\)"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_what_nothing_describes_is_refused(change, message, path):
    model = vit()
    change(model)
    with pytest.raises(ValueError, match=message) as caught:
        vt.save(model, path)
    assert "\n" not in str(caught.value)
    assert "model.edit(...), reset_head or a custom config" in str(caught.value)
    assert not path.exists()


def test_an_edit_that_no_file_can_name_is_refused(path):
    model = vit()
    model.edit(NarrowMlp(hidden_dim=7))
    with pytest.raises(ValueError, match=r"NarrowMlp, because it is not registered.*EDITS\['narrow_mlp'\] = NarrowMlp"):
        vt.save(model, path)


# What save does not mind


def wrap_inside(model):
    model.blocks[0] = torch.compile(model.blocks[0])
    model.blocks[1] = checkpoint_wrapper(model.blocks[1])
    return model


def with_other_rates(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
        if hasattr(module, "rate"):
            module.rate = 0.3
    return model


def noted(model):
    model.epoch, model.blocks[0].nickname = 3, "first"
    return model


OUTSIDE = {
    "training": lambda model: model.train(),
    "rates": with_other_rates,
    "compiled": torch.compile,
    "compiled in place": lambda model: (model.compile(), compile_blocks(model), model)[-1],
    "wrapped inside": wrap_inside,
    "recomputed": lambda model: (checkpoint_blocks(model), model)[-1],
    "accelerated": lambda model: (optimize_for_inference(model), model)[-1],
    "channels last": lambda model: model.to(memory_format=torch.channels_last),
    "frozen": lambda model: model.requires_grad_(False),
    "with notes": noted,
    "hooked": lambda model: (model.blocks[0].register_forward_hook(lambda *_: None), model)[-1],
    "forward replaced": lambda model: (setattr(model, "forward", functools.partial(model.forward)), model)[-1],
}


@pytest.mark.parametrize("wrap", OUTSIDE.values(), ids=OUTSIDE)
def test_what_is_done_from_outside_does_not_matter(wrap, path):
    model = vit(drop_rate=0.1, drop_path_rate=0.1)
    expected = model(images())
    vt.save(wrap(model), path)
    assert torch.equal(vt.load(path).eval()(images()), expected)


def test_half_precision_is_saved(path):
    model = vit()
    model.edit(vt.ReplaceActivation(act="relu"))
    vt.save(model.bfloat16(), path)
    assert torch.equal(vt.load(path).head.weight, model.head.weight.float())


@pytest.mark.parametrize("name", SMALLEST)
def test_use_does_not_change_the_structure(name):
    """Of no family: after a step at another size, and with another head."""
    model = tiny(name)
    model.train()(images(96)).sum().backward()
    model.eval()(images(64))
    model.reset_head(4)
    with torch.device("meta"):
        assert not list(differences(model, rebuild(model.config, model.edits)))


def test_training_keeps_the_edits(tmp_path):
    recipe = with_training(steps=2, checkpoint_activations=True)
    prepared = prepare_run(recipe)
    prepared.model.edit(vt.ReplaceActivation(act="relu"))
    trainer = Trainer(
        prepared.model,
        recipe.task,
        prepared.train,
        valid=prepared.valid,
        augment=recipe.augment,
        config=recipe.train,
        folder=tmp_path,
        world=World(),
    )
    trainer.fit()
    again = vt.load(tmp_path / "model.safetensors")
    assert again.edits == prepared.model.edits
    assert {type(block.mlp.act) for block in again.blocks} == {nn.ReLU}


# Versions


def rewritten(path, **changes):
    """The same file with other metadata."""
    with safe_open(path, framework="pt") as file:
        metadata = {**file.metadata(), **changes}
    safetensors.torch.save_file(safetensors.torch.load_file(path), path, metadata)


def test_the_metadata_of_a_file(path):
    model = vit()
    model.edit(vt.ReplaceActivation(act="relu"))
    vt.save(model, path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["version"], metadata["family"]) == ("vitreous", "3", "vit")
    assert json.loads(metadata["edits"]) == [{"edit": "replace_activation", "act": "relu"}]


NEWER = {
    "version": (
        {"version": "4"},
        "format version 4 is newer than the versions supported here \\(up to 3\\); upgrade Vitreous",
    ),
    "edit": ({"edits": '[{"edit": "merge_tokens", "r": 8}]'}, "unknown edit 'merge_tokens'.*newer Vitreous.*upgrade"),
    "option": ({"edits": '[{"edit": "fold", "depth": 8}]'}, "Fold has no option 'depth'"),
    "value": ({"edits": '[{"edit": "replace_activation", "act": "x"}]'}, "act must be one of gelu, gelu_tanh, relu"),
    "no edits": ({"edits": '{"edit": 1}'}, "edits must be a list"),
    "no place": ({"edits": '["fold"]'}, "cannot build a model from its config and edits .*nothing to fold"),
}


@pytest.mark.parametrize(("changes", "message"), NEWER.values(), ids=NEWER)
def test_files_that_this_version_cannot_read(changes, message, path):
    vt.save(vit(), path)
    rewritten(path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        vt.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "left", "edits"),
    [
        ({"dim": 8}, {"dim": 8}, []),
        ({"dim": 8, "folded": False}, {"dim": 8}, []),
        ({"folded": True, "mixer": {"mixer": "rep_conv", "folded": False}}, {"mixer": {"mixer": "rep_conv"}}, ["fold"]),
        (
            {"stages": [{"mixer": {"folded": True}}, {"mixer": {}}]},
            {"stages": [{"mixer": {}}, {"mixer": {}}]},
            ["fold"],
        ),
    ],
)
def test_folded_of_version_1_becomes_an_edit(options, left, edits):
    assert formats.extract_version_1_edits(options) == edits
    assert options == left
