"""MobileViT equals timm and transformers with the same weights, at any size including odd ones."""

import re
from types import SimpleNamespace

import pytest
import timm
import torch
import transformers
from torch import nn

import vitreous as vt
from tests.family import others_slowly
from tests.parity import (
    TOLERANCE,
    Logits,
    assert_every_block_matters,
    assert_same_macs,
    assert_same_parameters,
    error,
    fill,
    same,
)
from vitreous.layers.attention import Attend
from vitreous.layers.inverted import InvertedResidual
from vitreous.models.mobilevit import VARIANTS, MobileViTBlock, MobileViTConfig

SIZES = [(64, 64), (57, 100)]


@torch.no_grad()
def seeing(model):
    """Random weights with statistics of some images; with random ones the output barely depends on the image."""
    norms = [part for part in fill(model).modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    model.train()(torch.randn(4, 3, 64, 64))
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


def timm_model(name="mobilevit_xxs", classes=7):
    return seeing(timm.create_model(name, num_classes=classes))


def transformers_model(name, classes):
    config = VARIANTS[name]
    options = {
        "hidden_sizes": config.mixer_dims,
        "neck_hidden_sizes": (config.stem_dim, *config.dims, config.final_dim),
        "expand_ratio": config.expand_ratio,
        "num_labels": classes,
    }
    return transformers.MobileViTForImageClassification(transformers.MobileViTConfig(**options))


def ours(**overrides):
    options = {"image_size": 64, "num_classes": 7}
    return vt.create_model("mobilevit_xxs", **(options | overrides))


def with_a_shortcut(model):
    """Blocks with a shortcut; the others change the map's width or size."""
    blocks = [block for block in model.blocks if getattr(block, "has_shortcut", True)]
    return SimpleNamespace(blocks=blocks)


def test_timm_at_the_native_size():
    report = same(
        vt.create_model("mobilevit_xxs"), timm_model(classes=1000), torch.randn(1, 3, 256, 256), every_block=False
    )
    assert report.source == "timm"


@torch.no_grad()
@pytest.mark.parametrize(("name", "size"), [*(("mobilevit_xxs", size) for size in SIZES), ("mobilevit_s", SIZES[1])])
def test_timm(name, size):
    """The second size has maps of 8×13, 4×7 and 2×4 cells, of which two are resized to a multiple of the patch."""
    model, images = vt.create_model(name, image_size=64, num_classes=7), torch.randn(1, 3, *size)
    same(model, timm_model(name), images, every_block=False)
    assert_every_block_matters(with_a_shortcut(model), lambda: model(images))
    assert_attention_matters(model, images)


def assert_attention_matters(model, images):
    """With uniform attention the output changes."""
    expected = model(images)
    for part in model.modules():
        if isinstance(part, Attend):
            part.temperature = 1e4
    assert error(model(images), expected) > 1e-2


@pytest.mark.parametrize("size", SIZES)
def test_transformers(size):
    theirs = seeing(transformers_model("mobilevit_xxs", 7))
    report = same(ours(), Logits(theirs), torch.randn(2, 3, *size), every_block=False)
    assert report.source == "transformers"


@torch.no_grad()
def test_maps_equal_timm():
    theirs, model = timm_model(), ours().eval()
    vt.load_weights(model, theirs.state_dict())
    images = torch.randn(1, 3, 57, 100)
    expected = theirs.forward_intermediates(images, intermediates_only=True)
    maps = model.features(images).maps
    assert [m.stride for m in maps] == [(2, 2), (4, 4), (8, 8), (16, 16), (32, 32)]
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(maps, expected[-5:], strict=True))


def test_batch_norm_statistics_equal_timm():
    theirs, model = timm_model().double().train(), ours().double().train()
    vt.load_weights(model, theirs.state_dict())
    images = torch.randn(4, 3, 64, 64).double()
    assert error(model(images), theirs(images)) < TOLERANCE
    assert error(model.final.norm.running_var, theirs.final_conv.bn.running_var) < TOLERANCE


#: From timm's to the original names.
TO_THE_AUTHORS = (
    (r"^stem\.", "conv_1.block."),
    (r"^final_conv\.", "conv_1x1_exp.block."),
    (r"^head\.", "classifier."),
    (r"^stages\.(\d)", lambda match: f"layer_{int(match[1]) + 1}"),
    (r"conv1_1x1\.", "block.exp_1x1.block."),
    (r"conv2_kxk\.", "block.conv_3x3.block."),
    (r"conv3_1x1\.", "block.red_1x1.block."),
    (r"1\.conv_kxk\.", "1.local_rep.conv_3x3.block."),
    (r"1\.conv_1x1\.weight", "1.local_rep.conv_1x1.block.conv.weight"),
    (r"conv_proj\.", "conv_proj.block."),
    (r"conv_fusion\.", "fusion.block."),
    (r"\.bn\.", ".norm."),
    (r"1\.norm\.(weight|bias)$", r"1.global_rep.9.\1"),
    (r"transformer\.(\d)\.norm1", r"global_rep.\1.pre_norm_mha.0"),
    (r"transformer\.(\d)\.attn\.qkv", r"global_rep.\1.pre_norm_mha.1.qkv_proj"),
    (r"transformer\.(\d)\.attn\.proj", r"global_rep.\1.pre_norm_mha.1.out_proj"),
    (r"transformer\.(\d)\.norm2", r"global_rep.\1.pre_norm_ffn.0"),
    (r"transformer\.(\d)\.mlp\.fc1", r"global_rep.\1.pre_norm_ffn.1"),
    (r"transformer\.(\d)\.mlp\.fc2", r"global_rep.\1.pre_norm_ffn.4"),
)


def as_the_authors(name):
    for pattern, replacement in TO_THE_AUTHORS:
        name = re.sub(pattern, replacement, name)
    return name


@torch.no_grad()
def test_the_names_of_the_authors():
    theirs, model = timm_model(), ours().eval()
    state = {as_the_authors(name): tensor for name, tensor in theirs.state_dict().items()}
    assert "layer_3.1.global_rep.9.weight" in state
    assert "layer_3.0.block.conv_3x3.block.norm.running_mean" in state
    report = vt.load_weights(model, state)
    assert report.source == "ml-cvnets"
    images = torch.randn(1, 3, 64, 64)
    assert error(model(images), theirs(images)) < TOLERANCE


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_both_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(name, num_classes=classes))
    assert_same_parameters(name, lambda classes: transformers_model(name, classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(name, num_classes=classes))


class Sums(nn.Module):
    """Add the mean of all tokens to each, and keep the grids it was called with."""

    def __init__(self):
        super().__init__()
        self.grids = []

    def forward(self, x, grid):
        self.grids.append(grid)
        return x + x.mean(1, keepdim=True)


@torch.no_grad()
@pytest.mark.parametrize("patch", [(2, 2), (1, 3)])
@pytest.mark.parametrize("patches", [(1, 1), (3, 5), (4, 2)])
def test_tokens_at_the_same_position_of_all_patches_attend_to_each_other(patches, patch):
    layer, (p, q) = Sums(), patch
    block = fill(MobileViTBlock(4, 6, [layer], patch_size=patch, norm_eps=1e-5))
    x = torch.randn(2, 6, patches[0] * p, patches[1] * q)
    expected = torch.empty_like(x)
    for image, row, column in ((i, r, c) for i in range(2) for r in range(p) for c in range(q)):
        cells = x[image, :, row::p, column::q]
        cells = cells + cells.mean((1, 2), keepdim=True)
        expected[image, :, row::p, column::q] = block.norm(cells.permute(1, 2, 0)).permute(2, 0, 1)
    assert error(block.mix(x), expected) < TOLERANCE
    assert layer.grids == [patches]


@torch.no_grad()
def test_maps_are_resized_to_a_multiple_of_the_patch_and_back():
    block = fill(MobileViTBlock(4, 6, [Sums()], patch_size=(2, 2), norm_eps=1e-5))
    x = torch.randn(2, 6, 5, 8)
    larger = nn.functional.interpolate(x, (6, 8), mode="bilinear")
    expected = nn.functional.interpolate(block.mix(larger), (5, 8), mode="bilinear")
    assert torch.equal(block.mix(x), expected)


def test_blocks_are_inverted_residuals_and_mixers_in_turn():
    model = ours(depths=(1, 2, 1, 2, 1))
    kinds = ["c" if isinstance(block, InvertedResidual) else "m" for block in model.blocks]
    assert "".join(kinds) == "ccc" + "cm" + "cmm" + "cm"
    assert model.config.depth == len(kinds)


def test_attention_is_recorded_per_position_within_patches():
    model = ours(depths=(1, 1, 1, 1, 1)).eval()
    with vt.record(model) as trace, torch.no_grad():
        model(torch.randn(2, 3, 64, 96))
    assert list(trace) == ["blocks.3", "blocks.5", "blocks.7"]
    assert trace["blocks.3"].weights.shape == (2 * 4, 4, 24, 24)
    assert trace["blocks.5"].query_grid == (2, 3)


@pytest.mark.parametrize("mixer", ["window", "performer", {"mixer": "attention", "temperature": 0.5}])
def test_another_mixer(mixer):
    model = ours(mixer=mixer, depths=(1, 1, 1, 1, 1)).train()
    model(torch.randn(4, 3, 100, 78)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("size", [(1, 1), (33, 65), (57, 78)])
def test_odd_sizes_are_padded(size):
    features = fill(ours()).features(torch.randn(1, 3, *size))
    cells = [tuple(-(-side // stride) for side in size) for stride in (2, 4, 8, 16, 32)]
    assert [tuple(m.values.shape[2:]) for m in features.maps] == cells
    assert features.grid == cells[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 2)}, r"depths must have 5 numbers, one per stage; got \(2, 2, 2\)"),
        ({"dims": (8, 16, 32)}, r"dims must have 5 numbers, one per stage; got \(8, 16, 32\)"),
        ({"mixer_dims": (64, 64)}, r"mixer_dims must have 3 numbers, one per stage; got \(64, 64\)"),
        ({"num_heads": (4, 4, 4, 4)}, "num_heads must have 3 numbers"),
        ({"num_heads": (4, 4, 7)}, "multiple of num_heads, got dim=240, num_heads=7"),
        ({"patch_size": 0}, "patch_size must be a positive int"),
        ({"mixer": "atention"}, "did you mean 'attention'"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        MobileViTConfig().override(**options)
    assert "\n" not in str(caught.value)
