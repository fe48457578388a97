"""PoolFormer, PoolFormerV2, ConvFormer and CAFormer equal timm, and PoolFormer transformers, with the same weights."""

import re

import pytest
import timm
import torch
import transformers
from timm.models import metaformer as theirs_file
from torch import nn

import vitreous as vt
from tests.family import others_slowly
from tests.parity import TOLERANCE, Logits, assert_same_macs, assert_same_parameters, error, fill, same
from vitreous.layers.attention import SelfAttention
from vitreous.layers.norm import ImageNorm
from vitreous.layers.performer import Performer
from vitreous.layers.separable import SeparableConv
from vitreous.models.metaformer import CONV_SIZES, POOL_SIZES, VARIANTS, MetaFormerConfig, ScaledBlock

#: Arguments that timm's model functions pass to its class, which accepts other widths.
FAMILIES = {
    "poolformer_s12": {
        "downsample_norm": None,
        "mlp_act": nn.GELU,
        "mlp_bias": True,
        "norm_layers": theirs_file.GroupNorm1,
        "layer_scale_init_values": 1e-5,
        "res_scale_init_values": None,
        "use_mlp_head": False,
    },
    "poolformerv2_s12": {"norm_layers": theirs_file.GroupNorm1NoBias, "use_mlp_head": False},
    "convformer_s18": {"token_mixers": theirs_file.SepConv},
    "caformer_s18": {
        "token_mixers": [theirs_file.SepConv] * 2 + [theirs_file.Attention] * 2,
        "norm_layers": [theirs_file.LayerNorm2dNoBias] * 2 + [theirs_file.LayerNormNoBias] * 2,
    },
}
TINY = {"dims": (32, 64, 96, 128), "depths": (1, 1, 2, 2), "num_classes": 10}
AS_TIMM = {"final_norm": "pooled"}  # position of PoolFormer's final norm in timm


def ours_tiny(name, **options):
    return vt.create_model(name, image_size=64, **TINY | {"num_heads": (1, 2, 3, 4)} | options).eval()


def timm_tiny(name):
    return fill(theirs_file.MetaFormer(**TINY, **FAMILIES[name]))


@pytest.mark.parametrize("size", [(64, 64), (96, 160)])
@pytest.mark.parametrize("name", FAMILIES)
def test_timm(name, size):
    ours, theirs = ours_tiny(name, **AS_TIMM), timm_tiny(name)
    report = same(ours, theirs, torch.randn(2, 3, *size))
    assert (report.source, report.adapted, report.fresh, report.unused) == ("timm", [], [], [])


@torch.no_grad()
def test_timm_at_full_size():
    ours, theirs = vt.create_model("poolformerv2_s12"), fill(timm.create_model("poolformerv2_s12"))
    same(ours, theirs, torch.randn(1, 3, 224, 224), every_block=False)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_maps_equal_timm(name):
    ours, theirs, images = ours_tiny(name, **AS_TIMM), timm_tiny(name), torch.randn(1, 3, 64, 96)
    vt.load_weights(ours, theirs.state_dict())
    maps = ours.features(images).maps
    expected = theirs.forward_intermediates(images, intermediates_only=True)
    assert [m.stride for m in maps] == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(maps, expected, strict=True))


def transformers_tiny():
    config = transformers.PoolFormerConfig(hidden_sizes=TINY["dims"], depths=TINY["depths"], num_labels=10)
    return fill(transformers.PoolFormerForImageClassification(config))


@pytest.mark.parametrize("size", [(64, 64), (96, 160)])
def test_transformers(size):
    report = same(ours_tiny("poolformer_s12"), Logits(transformers_tiny()), torch.randn(2, 3, *size))
    assert report.source == "transformers"


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(name, num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(name, num_classes=classes))


def as_poolformer(name):
    """Convert to names that count stages and downsampling layers together, with scales as parameters."""
    name = re.sub(r"stages.(\d).downsample.conv", lambda m: f"network.{2 * int(m[1]) - 1}.proj", name)
    name = re.sub(r"stages.(\d).blocks", lambda m: f"network.{2 * int(m[1])}", name)
    name = re.sub(r"layer_scale(\d).scale", r"layer_scale_\1", name)
    return name.replace("stem.conv", "patch_embed.proj").replace("head.norm", "norm").replace("head.fc", "head")


def as_baselines(name):
    """Convert to names with separate stages and downsampling layers, and norms by index."""
    name = name.replace("stem.norm", "downsample_layers.0.post_norm").replace("stem", "downsample_layers.0")
    name = re.sub(r"stages.(\d).downsample", r"downsample_layers.\1", name)
    name = re.sub(r"(downsample_layers.[123]).norm", r"\1.pre_norm", name)
    name = re.sub(r"stages.(\d).blocks", r"stages.\1", name)
    return name.replace("head.norm", "norm").replace("head.fc", "head")


@pytest.mark.parametrize(
    ("name", "rename", "source"),
    [
        ("poolformer_s12", as_poolformer, "PoolFormer"),
        *((name, as_baselines, "MetaFormer Baselines") for name in FAMILIES if name != "poolformer_s12"),
    ],
)
@torch.no_grad()
def test_original_names(name, rename, source):
    theirs, ours = timm_tiny(name), ours_tiny(name, **AS_TIMM)
    state = {rename(key): tensor for key, tensor in theirs.state_dict().items()}
    assert theirs_file.checkpoint_filter_fn(state, theirs).keys() == theirs.state_dict().keys() != state.keys()
    report = vt.load_weights(ours, state)
    assert (report.source, report.num_loaded) == (source, len(ours.state_dict()))
    images = torch.randn(1, 3, 64, 64)
    assert error(ours(images), theirs(images)) < TOLERANCE


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 7])
@torch.no_grad()
def test_a_norm_over_the_whole_image(num_tokens, bias):
    norm, x = fill(ImageNorm(8, eps=1e-3, bias=bias)), 3 * torch.randn(2, num_tokens, 8) + 1
    for image, out in zip(x, norm(x), strict=True):
        mean = sum(image.flatten()) / image.numel()
        variance = sum((image.flatten() - mean) ** 2) / image.numel()
        expected = (image - mean) / (variance + 1e-3).sqrt() * norm.weight + (norm.bias if bias else 0)
        assert error(out, expected) < 1e-5


def test_each_paper_has_its_own_blocks():
    pool, pool2, conv, both = (ours_tiny(name) for name in FAMILIES)
    assert {type(block.norm1) for block in (*pool.blocks, *pool2.blocks)} == {ImageNorm}
    assert {type(block.norm1) for block in (*conv.blocks, *both.blocks)} == {nn.LayerNorm}
    assert [isinstance(block, ScaledBlock) for block in both.blocks] == [False, False, True, True, True, True]
    assert not any(isinstance(block, ScaledBlock) for block in pool.blocks)
    assert {type(block.mixer) for block in conv.blocks} == {SeparableConv}
    assert [type(block.mixer) for block in both.blocks] == [SeparableConv] * 2 + [SelfAttention] * 4
    assert not [name for name, _ in both.stages.named_parameters() if re.search(r"(norm.|mlp.fc.|proj).bias", name)]


def test_another_mixer_replaces_the_papers():
    everywhere, in_two_stages = (ours_tiny(name, mixer="performer") for name in ("convformer_s18", "caformer_s18"))
    kind = type(Performer().build(everywhere.config.block_context(0, (4, 4), 0)))
    assert {type(block.mixer) for block in everywhere.blocks} == {kind}
    assert [type(block.mixer) for block in in_two_stages.blocks] == [SeparableConv] * 2 + [kind] * 4


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [(1, 1), (57, 78)])
def test_any_size(name, size):
    features = fill(ours_tiny(name)).features(torch.randn(1, 3, *size))
    cells = [tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32)]
    assert [tuple(m.values.shape[2:]) for m in features.maps] == cells
    assert features.tokens.isfinite().all()
    assert torch.equal(features.maps[-1].values.flatten(2).mT, features.tokens)


@torch.no_grad()
def test_the_hidden_layer_belongs_to_the_classifier():
    model, images = fill(ours_tiny("convformer_s18")), torch.randn(2, 3, 64, 64)
    pooled = model.pooled(model.features(images))
    hidden = model.head.norm(model.head.fc1(pooled).clamp(min=0) ** 2)
    assert error(model(images), hidden @ model.head.weight.T + model.head.bias) < TOLERANCE
    state = model.state_dict()
    without = ours_tiny("convformer_s18", num_classes=0)
    report = vt.load_weights(without, state)
    assert len(report.unused) == 6
    assert torch.equal(without(images), pooled)
    without.reset_head(5)
    assert without(images).shape == (2, 5)
    assert len(vt.load_weights(without, state).fresh) == 6
    with pytest.raises(ValueError, match="the weights have 10 classes, the model has 5"):
        vt.load_weights(without, state, head="strict")


def test_initialization_of_the_papers():
    torch.manual_seed(0)
    model = vt.create_model("caformer_s18", depths=(1, 1, 1, 1))
    for weight in (
        model.stages[3].downsample.conv.weight,
        model.blocks[0].mixer.depthwise.weight,
        model.blocks[3].mixer.qkv.weight,
        model.head.fc1.weight,
    ):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert all(block.keep1.gamma.eq(1).all() for block in model.blocks[2:])
    pooling = vt.create_model("poolformer_s12", depths=(1, 1, 1, 1))
    assert torch.equal(pooling.blocks[0].scale1.gamma, torch.full((64,), 1e-5))


def test_every_variant_has_a_public_weight():
    public = {name.split(".")[0] for pattern in ("*poolformer*", "c*former*") for name in vt.list_weights(pattern)}
    assert set(VARIANTS) <= public
    assert len(VARIANTS) == 2 * len(POOL_SIZES) + 2 * len(CONV_SIZES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 6)}, r"depths must have 4 numbers, one per stage; got \(2, 2, 6\)"),
        ({"num_heads": (3, 4, 10, 16)}, "multiple of num_heads, got dim=64, num_heads=3"),
        ({"norm": "batch"}, "norm must be one of token, image; got 'batch'"),
        ({"mixer": "poool"}, "did you mean 'pool'"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        MetaFormerConfig().override(**options)
    assert "\n" not in str(caught.value)
