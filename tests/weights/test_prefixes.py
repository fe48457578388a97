"""Prefixes of wrappers, single and nested, are stripped for every family's key maps."""

import pytest
import timm
import torch
import torchvision

import vitreous as vt
from tests.parity import fill
from vitreous.weights.prefixes import strip_prefixes, stripped_prefix

PREFIXES = (
    "module.",
    "_orig_mod.",
    "model.",
    "net.",
    "backbone.",
    "encoder.",
    "model._orig_mod.",
    "module.model.",
    "0.",
)


def below(prefix, state):
    return {prefix + name: tensor for name, tensor in state.items()}


@pytest.fixture(scope="module")
def vit():
    return fill(torchvision.models.VisionTransformer(32, 16, 2, 3, 192, 768, num_classes=5))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_wrapper_and_those_around_it(prefix, vit):
    model = vt.create_model("vit_tiny_16", depth=2, image_size=32, num_classes=5)
    report = vt.load_weights(model, below(prefix, vit.state_dict()))
    assert report.source == "torchvision"
    assert report.notes == [f"stripped the prefix {prefix!r} of the names"]
    assert torch.equal(model.blocks[1].mlp.fc2.weight, vit.encoder.layers[1].mlp[3].weight)


def test_a_file_without_prefixes_says_nothing_of_them(vit):
    model = vt.create_model("vit_tiny_16", depth=2, image_size=32, num_classes=5)
    assert vt.load_weights(model, vit.state_dict()).notes == []


FAMILIES = {
    "vit_tiny_16": "vit_tiny_patch16_224",
    "fastvit_t8": "fastvit_t8",
    "coatnet_nano_rw": "coatnet_nano_rw_224",
    "swin_tiny": "swin_tiny_patch4_window7_224",
    "convnext_atto": "convnext_atto",
    "xcit_nano_12_16": "xcit_nano_12_p16_224",
    "resnet18": "resnet18",
    "efficientformer_l1": "efficientformer_l1",
    "pvt_v2_b0": "pvt_v2_b0",
    "mobilevit_xxs": "mobilevit_xxs",
    "caformer_s18": "caformer_s18",
    "vit_tiny_r_s16": "vit_tiny_r_s16_p8_224",
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("prefix", ["module.", "model._orig_mod."])
def test_every_family(name, prefix):
    """Of timm's names, and of our own: what torch.compile and DDP make of a Vitreous model."""
    with torch.device("meta"):
        ours = vt.create_model(name)
        theirs = timm.create_model(FAMILIES[name], num_classes=ours.config.num_classes)
        reports = [vt.load_weights(ours, below(prefix, model.state_dict())) for model in (theirs, ours)]
    for report in reports:
        assert report.num_loaded == len(ours.state_dict())
        assert f"stripped the prefix {prefix!r} of the names" in report.notes
    assert "timm" in reports[0].source
    assert reports[1].source == "Vitreous"


def test_a_compiled_part_inside():
    model = vt.create_model("vit_tiny_16", depth=2, image_size=32, num_classes=5)
    state = {name.replace("blocks.0.", "blocks.0._orig_mod."): tensor for name, tensor in model.state_dict().items()}
    assert vt.load_weights(model, state).num_loaded == len(state)


def test_errors_name_what_the_file_names(vit):
    model = vt.create_model("vit_tiny_16", depth=2, image_size=32, num_classes=5)
    state = below("module.model.", vit.state_dict() | {"encoder.extra": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"1 unknown \(module.model.encoder.extra\)"):
        vt.load_weights(model, state)
    state = below("module.", vit.state_dict() | {"class_token": torch.zeros(1, 1, 3)})
    with pytest.raises(ValueError, match=r"1 with a different shape \(module.class_token has shape"):
        vt.load_weights(model, state)


def test_a_segmenter_in_a_wrapper():
    model = fill(vt.create_model(vt.SegmenterConfig(backbone="vit_tiny_16", image_size=32, num_classes=4)))
    other = fill(vt.create_model(model.config), seed=1)
    assert vt.load_weights(other, below("_orig_mod.", model.state_dict())).num_loaded == len(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["a", "b"], [""]),
        (["m.a", "m.b"], ["", "m."]),
        (["m.a", "m.b", "head"], ["", "m."]),
        (["m.a", "head"], [""]),  # not most of them
        (["m.a", "m.b", "a"], [""]),  # two would be one
        (["x/y/a", "x/y/b"], ["", "x/", "x/y/"]),
        (["a.a.a.a.a.a.a.b"], ["", "a.", "a.a.", "a.a.a.", "a.a.a.a."]),
        (["_orig_mod.a", "a"], [""]),
        ([], [""]),
    ],
)
def test_step_by_step(names, steps):
    found = list(strip_prefixes(names))
    assert [stripped_prefix(step) for step in found] == steps
    assert all(sorted(step.values()) == sorted(names) for step in found)
