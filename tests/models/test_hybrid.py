"""Hybrids of ResNet and ViT equal timm's with the same weights."""

import pytest
import timm
import torch
from torch import nn

import vitreous as vt
from tests.family import others_slowly
from tests.parity import assert_same_macs, assert_same_parameters, error, fill, same
from vitreous.models.hybrid import VARIANTS, Bottleneck

TIMM_NAMES = {name: f"{name}{'_p8' if name == 'vit_tiny_r_s16' else ''}_224" for name in VARIANTS}


@torch.no_grad()
def assert_every_residual_block_matters(model, images):
    """Sensitivity check of the stem: reducing any block to its shortcut changes the output."""
    expected = model(images)
    for block in [module for module in model.stem.modules() if isinstance(module, Bottleneck)]:
        original, block.forward = block.forward, lambda x, block=block: block.act(block.downsample(x))
        moved = error(model(images), expected)
        block.forward = original
        assert moved > 1e-2


@pytest.mark.parametrize("name", others_slowly(["vit_tiny_r_s16", "vit_small_r26_s32"]))
def test_timm_at_the_native_size(name):
    theirs = fill(timm.create_model(TIMM_NAMES[name]))
    report = same(vt.create_model(name), theirs, torch.randn(1, 3, 224, 224), every_block=name == "vit_tiny_r_s16")
    assert report.source == "timm"


@pytest.mark.parametrize("size", [(64, 96), (50, 71)])
def test_timm_non_square_and_odd(size):
    """Padding depends on the size of every map: on odd sides it differs between layers."""
    few = {"depth": 2, "num_heads": 3, "num_classes": 7}
    theirs = fill(timm.create_model("vit_base_r50_s16_224", img_size=size, embed_dim=192, **few)).double()
    ours = vt.create_model("vit_base_r50_s16", image_size=size, dim=192, **few).double()
    images = torch.randn(1, 3, *size).double()
    same(ours, theirs, images)
    if size == (64, 96):
        assert_every_residual_block_matters(ours, images)


def test_timm_positions_resized_while_running():
    theirs = fill(timm.create_model("vit_small_r26_s32_224", dynamic_img_size=True, depth=2))
    same(vt.create_model("vit_small_r26_s32", depth=2), theirs, torch.randn(1, 3, 160, 288), every_block=False)


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(TIMM_NAMES[name], num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(TIMM_NAMES[name], num_classes=classes))


def small(**overrides):
    options = {"dim": 24, "num_heads": 2, "depth": 2, "stem_depths": (1, 1), "patch_size": 8, "image_size": 32}
    return vt.create_model("vit_tiny_r_s16", **(options | overrides))


@pytest.mark.parametrize(("stem_depths", "patch_size"), [(None, 4), ((1,), 8), ((2, 1), 8), ((1, 1, 1), (16, 32))])
def test_tokens_are_patches_of_features(stem_depths, patch_size, tmp_path):
    model = fill(small(stem_depths=stem_depths, patch_size=patch_size, image_size=(49, 70)))
    images = torch.randn(2, 3, 49, 70)
    features = model.features(images)
    (stride,) = model.strides
    assert features.grid == (-(-49 // stride[0]), -(-70 // stride[1]))
    assert len(model.blocks) == model.config.depth == 2
    assert sum(isinstance(module, Bottleneck) for module in model.modules()) == sum(stem_depths or ())
    vt.save(model, tmp_path / "model.safetensors")
    again = vt.load(tmp_path / "model.safetensors").eval()
    assert again.config == model.config
    assert torch.equal(again(images), model(images))


def test_initialization_of_resnet_and_projection():
    stem = vt.create_model("vit_small_r26_s32", depth=1).stem
    assert stem.root.conv.weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
    assert stem.embed.proj.weight.std().item() == pytest.approx(2048**-0.5, rel=0.05)
    assert not stem.embed.proj.bias.any()


def test_the_encoder_takes_any_mixer():
    model = small(mixer={"mixer": "attention", "temperature": 2.0})
    assert {block.mixer.attend.temperature for block in model.blocks} == {2.0}
    model = small(class_token=False, pool="mean", position="rope", dim=32)
    assert isinstance(model.blocks[0].mixer.rotary, nn.Module)
    assert model(torch.randn(1, 3, 40, 64)).isfinite().all()


def test_weights_for_384_pixels_fit_models_of_224():
    theirs = timm.create_model("vit_tiny_r_s16_p8_384", depth=1)
    report = vt.load_weights(vt.create_model("vit_tiny_r_s16", depth=1), theirs.state_dict())
    assert "12×12, resampled to 7×7" in str(report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stem": "conv"}, "the stem of a hybrid is its ResNet, got stem='conv'; set stem_depths instead"),
        ({"stem_depths": (1, 1, 1, 1, 1)}, "stem_depths must have at most 4 numbers"),
        ({"stem_depths": (1, 0)}, "each of stem_depths must be at least 1, got 0"),
        ({"stem_depths": 3}, "stem_depths must be a sequence of values, got 3"),
        ({"patch_size": 12}, r"patch_size \(12, 12\) must be a multiple of the ResNet's stride, 8 with"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        small(**options)
    assert "\n" not in str(caught.value)
