"""PVT v2 equals timm and transformers with the same weights."""

import re

import pytest
import timm
import torch
import transformers
from timm.models.pvt_v2 import OverlapPatchEmbed, checkpoint_filter_fn

import vitreous as vt
from tests.family import others_slowly, small
from tests.parity import TOLERANCE, Logits, assert_same_macs, assert_same_parameters, error, fill, same
from vitreous.layers.downsample import OverlapEmbed
from vitreous.layers.reduction import Reduction
from vitreous.models.pvt_v2 import VARIANTS

SHALLOW = {"depths": (1, 1, 2, 1)}


@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
def test_timm(size):
    ours, theirs = vt.create_model("pvt_v2_b0"), fill(timm.create_model("pvt_v2_b0"))
    report = same(ours, theirs, torch.randn(1, 3, *size), every_block=size != (224, 224))
    assert (report.source, report.adapted, report.fresh) == ("timm", [], [])


@pytest.mark.parametrize("name", ["pvt_v2_b2", "pvt_v2_b5"])
def test_timm_larger_ones_with_few_blocks(name):
    theirs = fill(timm.create_model(name, **SHALLOW))
    same(vt.create_model(name, **SHALLOW), theirs, torch.randn(2, 3, 64, 96))


@pytest.mark.parametrize("size", [(224, 224), (100, 131)])
def test_timm_linear(size):
    """Pooling to 7×7 cells gives equal results for any size."""
    theirs = fill(timm.create_model("pvt_v2_b2_li", **SHALLOW))
    ours = vt.create_model("pvt_v2_b2_li", **SHALLOW)
    same(ours, theirs, torch.randn(1, 3, *size), every_block=size != (224, 224))


@torch.no_grad()
def test_maps_equal_timm():
    theirs = fill(timm.create_model("pvt_v2_b0", features_only=True))
    ours = vt.create_model("pvt_v2_b0", num_classes=0).eval()
    state = {re.sub(r"stages_(\d)", r"stages.\1", name): tensor for name, tensor in theirs.state_dict().items()}
    vt.load_weights(ours, state)
    images = torch.randn(1, 3, 64, 96)
    maps = ours.features(images).maps
    assert [m.stride for m in maps] == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(maps, theirs(images), strict=True))


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("size", [(64, 64), (96, 160)])
def test_transformers(linear, size):
    config = transformers.PvtV2Config(linear_attention=linear, num_labels=1000)
    mixer = Reduction(ratios=(8, 4, 2, 1), method="pool" if linear else "conv", norm_eps=1e-6)
    ours = vt.create_model("pvt_v2_b0", mixer=mixer, mlp="relu_conv" if linear else "conv", embed_norm_eps=1e-6)
    theirs = Logits(fill(transformers.PvtV2ForImageClassification(config)))
    assert same(ours, theirs, torch.randn(1, 3, *size)).source == "transformers"


DEEP = ("pvt_v2_b2", "pvt_v2_b3", "pvt_v2_b4", "pvt_v2_b5")


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(name, num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(name, num_classes=classes))


def to_original_names(name):
    """Convert to the original names, with stages from 1."""
    name = re.sub(r"^patch_embed", "patch_embed1", name).replace("dwconv", "dwconv.dwconv")
    for pattern, authors in (
        (r"^stages.(\d).downsample", "patch_embed"),
        (r"^stages.(\d).blocks", "block"),
        (r"^stages.(\d).norm", "norm"),
    ):
        name = re.sub(pattern, lambda m, authors=authors: f"{authors}{int(m[1]) + 1}", name)
    return name


def test_original_names():
    theirs = fill(timm.create_model("pvt_v2_b0"))
    state = {to_original_names(name): tensor for name, tensor in theirs.state_dict().items()}
    assert checkpoint_filter_fn(state, theirs).keys() == theirs.state_dict().keys() != state.keys()
    ours = vt.create_model("pvt_v2_b0").eval()
    report = vt.load_weights(ours, state)
    assert (report.source, report.num_loaded) == ("PVT", len(ours.state_dict()))
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert error(ours(images), theirs(images)) < TOLERANCE


@pytest.mark.parametrize(("kernel", "stride"), [(7, 4), (3, 2)])
@pytest.mark.parametrize("size", [(1, 1), (8, 12), (57, 78)])
@torch.no_grad()
def test_overlapping_patches_are_those_of_timm(kernel, stride, size):
    theirs = fill(OverlapPatchEmbed(kernel, stride, 3, 8))
    ours = OverlapEmbed(3, 8, kernel, stride=stride)
    ours.load_state_dict({name.replace("proj", "conv"): tensor for name, tensor in theirs.state_dict().items()})
    images = torch.randn(2, 3, *size)
    expected = theirs(images)
    assert expected.shape[1:3] == tuple(-(-side // stride) for side in size)
    assert error(ours(images), expected.flatten(1, 2)) < 1e-6


@torch.no_grad()
def test_overlapping_patches_with_less_padding_still_cover_the_image():
    embed = fill(OverlapEmbed(3, 8, 7, stride=4, padding=2))
    assert embed(torch.randn(1, 3, 57, 78)).shape == (1, 15 * 20, 8)
    images = torch.randn(1, 3, 8, 12)
    expected = embed.norm(embed.conv(images).flatten(2).transpose(1, 2))
    assert torch.equal(embed(images), expected)


@pytest.mark.parametrize("name", ["pvt_v2_b0", "pvt_v2_b2_li"])
@pytest.mark.parametrize("size", [(1, 1), (57, 78)])
def test_any_size(name, size):
    features = small(name, **SHALLOW).features(torch.randn(1, 3, *size))
    assert features.tokens.isfinite().all()
    assert features.grid == tuple(-(-side // 32) for side in size)
    assert torch.equal(features.maps[-1].values.flatten(2).transpose(1, 2), features.tokens)


def test_initialization_of_the_paper():
    torch.manual_seed(0)
    model = vt.create_model("pvt_v2_b1", **SHALLOW)
    block = model.blocks[0]
    assert block.mixer.attention.q.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mixer.reduce.conv.weight.std().item() == pytest.approx((2 / (64 * 8 * 8)) ** 0.5, rel=0.02)
    assert block.mlp.conv.weight.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.05)
    assert model.stages[0].downsample.conv.bias.abs().max() == 0


def test_every_variant_has_a_public_weight():
    assert {name.split(".")[0] for name in vt.list_weights("pvt_v2*")} == set(VARIANTS)
