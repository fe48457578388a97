"""ConvNeXt equals timm, torchvision and transformers with the same weights.

The sizes are multiples of 32: for others the reference implementations crop the image, and Vitreous pads it.
"""

import re

import pytest
import timm
import torch
import torchvision
import transformers
from timm.models.convnext import ConvNeXt, checkpoint_filter_fn
from torchvision.models.convnext import CNBlockConfig

import vitreous as vt
from tests.family import others_slowly, tiny
from tests.parity import (
    TOLERANCE,
    Logits,
    assert_same_macs,
    assert_same_parameters,
    error,
    fill,
    same,
)
from vitreous.layers.depthwise import Depthwise
from vitreous.models.convnext import VARIANTS

DIMS, DEPTHS, CLASSES = (32, 64, 96, 128), (2, 1, 2, 1), 10
SMALL = {"dims": DIMS, "depths": DEPTHS, "num_classes": CLASSES}


def ours_small(**options):
    return vt.create_model("convnext_tiny", num_heads=(1, 2, 3, 4), **SMALL | options).eval()


def timm_small(name="convnext_tiny", **options):
    return fill(timm.create_model(name, **SMALL | options))


def torchvision_small():
    rows = zip(DIMS, (*DIMS[1:], None), DEPTHS, strict=True)
    return fill(torchvision.models.ConvNeXt([CNBlockConfig(*row) for row in rows], num_classes=CLASSES))


def transformers_small():
    config = transformers.ConvNextConfig(hidden_sizes=list(DIMS), depths=list(DEPTHS), num_labels=CLASSES)
    return fill(transformers.ConvNextForImageClassification(config))


def test_timm_at_the_native_size():
    """A small timm model with 1×1 convolutions as linear layers."""
    ours, theirs = vt.create_model("convnext_atto"), fill(timm.create_model("convnext_atto"))
    report = same(ours, theirs, torch.randn(1, 3, 224, 224), every_block=False)
    assert (report.source, report.adapted, report.fresh, report.unused) == ("timm", [], [], [])


def test_timm_not_square():
    """As many blocks as in the paper's smallest model, all of which affect the output."""
    depths = VARIANTS["convnext_tiny"].depths
    same(ours_small(depths=depths), timm_small(depths=depths), torch.randn(2, 3, 64, 96))


@pytest.mark.parametrize("kernel", [3, 9])
def test_timm_other_kernels(kernel):
    same(ours_small(mixer=Depthwise(kernel=kernel)), timm_small(kernel_sizes=kernel), torch.randn(1, 3, 96, 64))


def test_timm_with_the_norm_before_the_mean():
    ours, theirs = ours_small(final_norm="tokens"), timm_small("convnext_tiny_hnf")
    images = torch.randn(1, 3, 64, 96)
    same(ours, theirs, images)
    with torch.no_grad():
        assert error(ours.features(images).maps[-1].values, theirs.forward_features(images)) < TOLERANCE


def test_timm_without_layer_scale():
    theirs = fill(ConvNeXt(ls_init_value=None, **SMALL))
    same(ours_small(layer_scale=None), theirs, torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize("size", [(64, 64), (96, 160)])
def test_torchvision(size):
    assert same(ours_small(), torchvision_small(), torch.randn(1, 3, *size)).source == "torchvision"


@pytest.mark.parametrize("size", [(64, 64), (96, 160)])
def test_transformers(size):
    assert same(ours_small(), Logits(transformers_small()), torch.randn(1, 3, *size)).source == "transformers"


@torch.no_grad()
def test_maps_equal_timm():
    """The last map is not normalized, since the final norm follows pooling."""
    ours, theirs = ours_small(), timm_small()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(1, 3, 64, 96)
    features = ours.features(images)
    expected = theirs.forward_intermediates(images, intermediates_only=True)
    assert [m.stride for m in features.maps] == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(features.maps, expected, strict=True))
    assert error(ours.pooled(features), theirs.forward_head(expected[-1], pre_logits=True)) < TOLERANCE


def as_the_original(name):
    """Convert to the names of the original repository, which lists downsampling layers separately."""
    for timms, original in (
        (r"^head.norm", "norm"),
        (r"^head.fc", "head"),
        (r"^stem", "downsample_layers.0"),
        (r"^stages.(\d).downsample", r"downsample_layers.\1"),
        (r"^stages.(\d).blocks", r"stages.\1"),
        ("conv_dw", "dwconv"),
        ("mlp.fc", "pwconv"),
    ):
        name = re.sub(timms, original, name)
    return name


def test_original_names():
    ours, theirs = ours_small(), timm_small()
    state = {as_the_original(name): tensor for name, tensor in theirs.state_dict().items()}
    assert checkpoint_filter_fn(state, theirs).keys() == theirs.state_dict().keys() != state.keys()
    report = vt.load_weights(ours, state)
    assert (report.source, report.num_loaded) == ("the original ConvNeXt", len(ours.state_dict()))
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert error(ours(images), theirs(images)) < TOLERANCE


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(name, num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(name, num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(f"convnext_{size}" for size in ("tiny", "small", "base", "large")))
def test_names_shapes_and_counts_equal_torchvision_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: torchvision.models.get_model(name, num_classes=classes))


@pytest.mark.parametrize("size", [(1, 1), (33, 65), (57, 78)])
def test_odd_sizes_are_padded(size):
    features = tiny("convnext_atto").features(torch.randn(1, 3, *size))
    assert features.tokens.isfinite().all()
    assert features.grid == tuple(-(-side // 32) for side in size)
    assert torch.equal(features.maps[-1].values.flatten(2).transpose(1, 2), features.tokens)


@torch.no_grad()
def test_odd_sizes_are_padded_where_others_crop():
    ours, theirs = ours_small(), timm_small()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(1, 3, 64, 97)
    changed = images.clone()
    changed[..., -1] += 1
    assert torch.equal(theirs(changed), theirs(images))
    assert error(ours(changed), ours(images)) > 1e-3


def test_padding_follows_the_norm():
    """The norm would add its bias to zero cells."""
    step = fill(ours_small()).stages[1].downsample
    cells = torch.randn(1, DIMS[0], 1, 1)
    normed = step.norm(cells.flatten(1))
    expected = step.embed.proj.weight[:, :, 0, 0] @ normed[0] + step.embed.proj.bias
    assert error(step(cells)[0, 0], expected) < TOLERANCE


def test_initialization_of_the_paper():
    model = vt.create_model("convnext_atto")
    for module in (model.stages[0].downsample.embed.proj, model.blocks[-1].mixer.conv, model.blocks[-1].mlp.fc1):
        assert module.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert module.bias.abs().max() == 0
    assert model.blocks[0].scale.gamma.unique().tolist() == pytest.approx([1e-6])


@pytest.mark.parametrize("mixer", ["attention", "window", {"mixer": "depthwise", "kernel": 3}])
def test_another_mixer(mixer):
    model = ours_small(mixer=mixer, image_size=64).train()
    model(torch.randn(2, 3, 57, 78)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_every_variant_has_a_public_weight():
    assert {name.split(".")[0] for name in vt.list_weights("convnext*")} == set(VARIANTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (3, 3, 9)}, r"depths must have 4 numbers, one per stage; got \(3, 3, 9\)"),
        ({"dims": (96, 192, 384, 100)}, "multiple of num_heads, got dim=100, num_heads=24"),
        ({"final_norm": "token"}, "final_norm must be one of tokens, pooled; got 'token'; did you mean 'tokens'?"),
        ({"kernel": 3}, "ConvNeXtConfig has no option 'kernel'"),
        ({"mixer": {"mixer": "depthwise", "kernal": 3}}, "Depthwise has no option 'kernal'; did you mean 'kernel'?"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        vt.create_model("convnext_tiny", **options)
    assert "\n" not in str(caught.value)
