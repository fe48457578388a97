"""XCiT equals timm with the same weights."""

import pytest
import timm
import torch

import vitreous as vt
from tests.family import others_slowly
from tests.parity import TOLERANCE, assert_same_macs, assert_same_parameters, error, fill, same
from vitreous.models.xcit import VARIANTS, ClassBlock, CovarianceBlock

#: Variants of both patch sizes and class attentions; the others differ only in width and depth.
QUICK = ["xcit_nano_12_16", "xcit_tiny_12_8"]


def theirs_of(name):
    """``xcit_tiny_12_16`` is ``xcit_tiny_12_p16_224`` in timm."""
    model, patch = name.rsplit("_", 1)
    return f"{model}_p{patch}_224"


def filled(name, **options):
    """timm's model with random weights, and temperatures at which channels have different weights."""
    model = fill(timm.create_model(theirs_of(name), **options))
    with torch.no_grad():
        for block in model.blocks:
            block.attn.temperature.uniform_(5, 20)
    return model


def tiny(**overrides):
    options = {"depths": (2, 1), "image_size": 64, "num_classes": 5} | overrides
    return fill(vt.create_model("xcit_nano_12_16", **options))


def test_timm_at_its_own_size():
    report = same(vt.create_model("xcit_nano_12_16"), filled("xcit_nano_12_16"), torch.randn(1, 3, 224, 224))
    assert report.source == "timm or XCiT"
    assert [*report.fresh, *report.adapted, *report.unused] == []


@pytest.mark.parametrize(
    "name", ["xcit_nano_12_8", "xcit_tiny_12_16", pytest.param("xcit_tiny_24_8", marks=pytest.mark.slow)]
)
def test_timm_at_another_size(name):
    same(vt.create_model(name), filled(name), torch.randn(2, 3, 48, 80))


@torch.no_grad()
def test_timm_at_sizes_that_are_no_multiples_of_the_patch():
    theirs, ours = filled("xcit_nano_12_16"), vt.create_model("xcit_nano_12_16").eval()
    vt.load_weights(ours, theirs.state_dict())
    for size in ((57, 78), (100, 131), (16, 16), (1, 3)):
        images = torch.randn(1, 3, *size)
        features = ours.features(images)
        assert features.grid == (-(-size[0] // 16), -(-size[1] // 16))
        assert error(ours(images), theirs(images)) < TOLERANCE
        assert error(features.tokens, theirs.forward_features(images)) < TOLERANCE


@pytest.mark.parametrize("name", ["xcit_nano_12_16", "xcit_tiny_12_16"])
@torch.no_grad()
def test_the_map_is_the_patch_tokens(name):
    """Both kinds of class attention, with patches normalized or not; patches equal timm's as well."""
    theirs, ours = filled(name), vt.create_model(name, num_classes=0).eval()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(2, 3, 48, 80)
    features, expected = ours.features(images), theirs.forward_features(images)
    assert features.num_prefix == 1
    assert features.maps[0].stride == (16, 16)
    assert error(features.tokens, expected) < TOLERANCE
    assert torch.equal(features.maps[0].values[:, :, 1, 3], features.tokens[:, 1 + 8])
    assert error(ours(images), expected[:, 0]) < TOLERANCE


def test_batch_norm_statistics_equal_timm():
    theirs = filled("xcit_nano_12_16", num_classes=5, depth=2).train()
    ours = vt.create_model("xcit_nano_12_16", num_classes=5, depths=(2, 2)).train()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(4, 3, 64, 64)
    assert error(ours(images), theirs(images)) < TOLERANCE
    for mine, other in (
        (ours.layers[1].local.norm, theirs.blocks[1].local_mp.bn),
        (ours.stem.convs[6][1], theirs.patch_embed.proj[6][1]),
    ):
        assert mine.num_batches_tracked == other.num_batches_tracked == 1
        assert error(mine.running_var, other.running_var) < TOLERANCE


def as_original(state):
    """Convert to the original names: other position names, fused projection in class attention."""
    original = {name.replace("pos_embed.", "pos_embeder."): tensor for name, tensor in state.items()}
    for name in [name for name in original if name.startswith("cls_attn") and ".attn.q." in name]:
        parts = [original.pop(name.replace(".q.", f".{part}.")) for part in "qkv"]
        original[name.replace(".q.", ".qkv.")] = torch.cat(parts)
    return original


@torch.no_grad()
def test_original_names():
    theirs, ours = filled("xcit_nano_12_16", depth=2), vt.create_model("xcit_nano_12_16", depths=(2, 2)).eval()
    state = as_original(theirs.state_dict())
    assert "cls_attn_blocks.1.attn.qkv.bias" in state
    assert "pos_embeder.token_projection.weight" in state
    report = vt.load_weights(ours, state)
    assert report.num_loaded == len(ours.state_dict())
    images = torch.randn(1, 3, 64, 64)
    assert error(ours(images), theirs(images)) < TOLERANCE


def test_mismatched_files_raise():
    state = as_original(filled("xcit_nano_12_16", depth=2).state_dict())
    ours = vt.create_model("xcit_nano_12_16", depths=(2, 2))
    for name, wrong in (
        ("cls_attn_blocks.0.attn.qkv.weight", torch.zeros(())),
        ("cls_attn_blocks.0.attn.qkv.weight", torch.zeros(4, 128)),
        ("blocks.0.local_mp.bn.running_mean", torch.zeros(3)),
    ):
        with pytest.raises(ValueError, match=r"does not fit XCiT: .*check that it is for this model"):
            vt.load_weights(ours, state | {name: wrong})
    with pytest.raises(ValueError, match=r"unknown \(blocks.1.gamma1"):
        vt.load_weights(vt.create_model("xcit_nano_12_16", depths=(1, 2)), state)


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(theirs_of(name), num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(theirs_of(name), num_classes=classes))


def test_initialization_equals_timm():
    for name in ("xcit_nano_12_16", "xcit_tiny_24_8"):
        ours, theirs = vt.create_model(name), timm.create_model(theirs_of(name))
        assert ours.layers[0].scale1.gamma.unique() == theirs.blocks[0].gamma1.unique()
        assert ours.layers[0].local_scale.gamma.unique() == theirs.blocks[0].gamma3.unique()
        assert ours.class_layers[1].scale2.gamma.unique() == theirs.cls_attn_blocks[1].gamma2.unique()
        assert ours.layers[0].mixer.temperature.unique() == theirs.blocks[0].attn.temperature.unique()
        assert ours.layers[0].mixer.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert ours.class_token.std().item() == pytest.approx(0.02, rel=0.2)


def test_blocks_are_both_kinds_in_order():
    model = vt.create_model("xcit_nano_12_16")
    assert [type(block) for block in model.blocks] == [CovarianceBlock] * 12 + [ClassBlock] * 2
    assert model.config.depth == 14


def test_drop_path_is_constant_and_absent_in_class_blocks():
    model = tiny(drop_path_rate=0.3)
    assert [block.drop_path.rate for block in model.blocks] == [0.3, 0.3, 0.0]


@torch.no_grad()
def test_recording_covariance_and_class_attention():
    model, images = tiny(), torch.randn(2, 3, 48, 80)
    with vt.record(model) as trace:
        recorded = model(images)
    assert error(recorded, model(images)) < 1e-5
    assert {name: tuple(a.weights.shape) for name, a in trace.items()} == {
        "blocks.0": (2, 4, 32, 32),
        "blocks.1": (2, 4, 32, 32),
        "blocks.2": (2, 4, 1, 1 + 3 * 5),
    }
    last = trace["blocks.2"]
    assert (last.query_grid, last.key_grid, last.num_prefix) == (None, (3, 5), 1)


def test_another_mixer():
    model = tiny(mixer="attention", layer_scale=None)
    model(torch.randn(2, 3, 64, 80)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    with vt.record(model) as trace:
        model(torch.randn(1, 3, 48, 80))
    assert trace["blocks.0"].query_grid == (3, 5)


@torch.no_grad()
def test_rgb_filters_are_adapted_to_other_channels():
    source, model = tiny(), tiny(num_channels=1)
    vt.load_weights(model, source.state_dict())
    gray = torch.randn(2, 1, 64, 64)
    assert error(model(gray), source(gray.expand(-1, 3, -1, -1))) < TOLERANCE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (12,)}, r"depths must have 2 numbers, one per stage; got \(12,\)"),
        ({"depths": (12, 0)}, "each of depths must be at least 1, got 0"),
        ({"depth": 12}, "has no option 'depth'; did you mean 'depths'"),
        ({"patch_size": (16, 8)}, r"needs square patches with a side of 2, 4, 8 … pixels, got \(16, 8\)"),
        ({"patch_size": 12}, "needs square patches with a side of 2, 4, 8 … pixels"),
        ({"num_heads": 5}, "multiple of num_heads, got dim=128, num_heads=5"),
        ({"mixer": "covarance"}, "did you mean 'covariance'"),
        ({"norm_patches": 1}, "norm_patches must be True or False, got 1"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        vt.create_model("xcit_nano_12_16", **options)
    assert "\n" not in str(caught.value)
