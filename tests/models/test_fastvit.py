"""FastViT equals timm with the same weights, with all branches and folded."""

import re

import pytest
import timm
import torch
from timm.models.fastvit import Attention, checkpoint_filter_fn
from timm.utils.model import reparameterize_model

import vitreous as vt
from tests.family import others_slowly
from tests.parity import TOLERANCE, assert_same_macs, assert_same_parameters, error, fill, same
from vitreous.compress.fold import Fold
from vitreous.layers.rep_conv import RepConvMixer
from vitreous.layers.reparam import Foldable, RepMixer
from vitreous.models.fastvit import VARIANTS, AttentionBlock, FastViTConfig

DIMS, DEPTHS, CLASSES = (16, 32, 64, 128), (1, 1, 2, 2), 7
SMALL = {"dims": DIMS, "depths": DEPTHS, "num_classes": CLASSES}
FORMS = pytest.mark.parametrize("folded", [False, True], ids=["branches", "folded"])


def create(name, *, folded=False, **options):
    model = vt.create_model(name, **options).eval()
    return vt.fold(model) if folded else model


def ours_small(name, **options):
    return create(name, **SMALL | options)


def theirs_small(name, *, folded=False):
    options = {"embed_dims": DIMS, "layers": DEPTHS, "num_classes": CLASSES, "inference_mode": folded}
    return softened(fill(timm.create_model(name, **options)))


@torch.no_grad()
def softened(theirs):
    """With random weights maps are so large that each query attends to a single key; scale them down."""
    for module in theirs.modules():
        if isinstance(module, Attention):
            module.qkv.weight[: 2 * module.qkv.in_features].mul_(0.015)
    return theirs


@FORMS
def test_timm_at_the_native_size(folded):
    theirs = fill(timm.create_model("fastvit_t8", inference_mode=folded)).double()
    ours = create("fastvit_t8", folded=folded).double()
    report = same(ours, theirs, torch.randn(1, 3, 256, 256).double(), every_block=False)
    assert (report.source, report.adapted, report.fresh, report.unused) == ("timm", [], [], [])


@FORMS
@pytest.mark.parametrize("size", [(64, 96), (57, 78)])
@pytest.mark.parametrize("name", ["fastvit_t12", "fastvit_sa12"])
def test_timm_small_and_not_square(name, size, folded):
    """Including odd sides: both implementations pad by half a kernel."""
    ours, theirs = ours_small(name, folded=folded).double(), theirs_small(name, folded=folded).double()
    same(ours, theirs, torch.randn(2, 3, *size).double())


@torch.no_grad()
def test_attention_is_seen():
    theirs, ours = theirs_small("fastvit_sa12").double(), ours_small("fastvit_sa12").double()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(1, 3, 128, 96).double()
    expected = ours(images)
    for block in ours.blocks[-2:]:
        original, block.mixer.forward = block.mixer.forward, lambda x, *_: torch.zeros_like(x)
        assert error(ours(images), expected) > 1e-2
        block.mixer.forward = original
    with vt.record(ours) as trace:
        ours(images)
    assert all(0.1 < attention.weights.amax(-1).median() < 0.9 for attention in trace.values())
    warmer = ours_small("fastvit_sa12", mixer={"mixer": "attention", "temperature": 1.5}).double()
    warmer.load_state_dict(ours.state_dict())
    assert error(warmer(images), expected) > 1e-2


@pytest.mark.parametrize("name", ["fastvit_s12", "fastvit_sa12"])
@torch.no_grad()
def test_folding_equals_timm(name):
    theirs, ours = theirs_small(name), ours_small(name)
    vt.load_weights(ours, theirs.state_dict())
    folded, expected = vt.fold(ours), ours_small(name, folded=True)
    vt.load_weights(expected, reparameterize_model(theirs).state_dict())
    assert (folded.config, folded.edits) == (expected.config, (Fold(),))
    assert folded.state_dict().keys() == expected.state_dict().keys()
    assert all(error(a, b) < TOLERANCE for a, b in zip(folded.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize("name", ["fastvit_t8", "fastvit_sa12"])
@torch.no_grad()
def test_folded_equals_unfolded(name):
    model, images = fill(ours_small(name)), torch.randn(2, 3, 57, 78)
    assert error(vt.fold(model)(images), model(images)) < 1e-5
    model, images = model.double(), images.double()
    folded = vt.fold(model)
    assert error(folded(images), model(images)) < 1e-12
    assert not any(isinstance(module, Foldable) for module in folded.modules())
    assert any(isinstance(module, RepMixer) for module in model.modules())


def test_a_folded_model_is_saved_loaded_and_given_a_new_head(tmp_path):
    model = fill(ours_small("fastvit_sa12", mixer=RepConvMixer(), image_size=64))
    folded, images = vt.fold(model), torch.randn(1, 3, 64, 64)
    assert (folded.config, folded.edits, model.edits) == (model.config, (Fold(),), ())
    vt.save(folded, tmp_path / "folded.safetensors")
    again = vt.load(tmp_path / "folded.safetensors").eval()
    assert (type(again), again.config, again.edits) == (type(model), folded.config, folded.edits)
    assert torch.equal(again(images), folded(images))
    folded.reset_head(3)
    assert folded(images).shape == (1, 3)
    with pytest.raises(ValueError, match="nothing to fold inside this FastViT: it is folded already"):
        vt.fold(folded)
    with pytest.raises(ValueError, match="does not fit FastViT"):
        vt.load_weights(model, folded.state_dict())


@torch.no_grad()
def test_maps_equal_timm():
    theirs, ours = theirs_small("fastvit_sa12").double(), ours_small("fastvit_sa12").double()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(1, 3, 57, 78).double()
    features = ours.features(images)
    last, maps = theirs.forward_intermediates(images)
    expected = [*maps[:-1], last]
    assert [m.stride for m in features.maps] == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(features.maps, expected, strict=True))
    assert ours.dims == (16, 32, 64, 256)


def test_batch_norm_statistics_equal_timm():
    theirs, ours = theirs_small("fastvit_sa12").double().train(), ours_small("fastvit_sa12").double().train()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(4, 3, 64, 64).double()
    assert error(ours(images), theirs(images)) < TOLERANCE
    mine, other = ours.blocks[0].mixer.conv.branches[1].norm, theirs.stages[0].blocks[0].token_mixer.mixer.conv_scale
    assert error(mine.running_var, other.bn.running_var) < TOLERANCE


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(name, num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_the_folded_form_equals_that_of_timm_on_the_meta_device(name):
    with torch.device("meta"):
        ours, theirs = create(name, folded=True), timm.create_model(name, inference_mode=True)
        report = vt.load_weights(ours, theirs.state_dict())
    assert report.num_loaded == len(ours.state_dict()) == len(theirs.state_dict())
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(name, num_classes=classes))


def to_original_names(name, attends):
    """Convert to names that count stages, downsampling layers and positions together."""
    for pattern, authors in (
        (r"^stem", "patch_embed"),
        (r"^final_conv", "conv_exp"),
        (r"se\.fc1", "se.reduce"),
        (r"se\.fc2", "se.expand"),
        (r"conv_kxk", "rbr_conv"),
        (r"conv_scale", "rbr_scale"),
        (r"identity", "rbr_skip"),
        (r"large_conv", "lkb_origin"),
        (r"(?<=downsample\.proj\.0\.)reparam_conv", "lkb_reparam"),
        (r"\.mlp\.", ".convffn."),
        (r"\.gamma$", ""),
        (r"head\.fc", "head"),
        (r"stages\.3\.pos_emb\.(pos_enc)?", lambda m: f"network.6.{'pe' if m[1] else ''}"),
        (r"stages\.3\.blocks", f"network.{6 + attends}"),
        (r"stages\.(\d)\.blocks", lambda m: f"network.{2 * int(m[1])}"),
        (r"stages\.(\d)\.downsample", lambda m: f"network.{2 * int(m[1]) - 1}"),
    ):
        name = re.sub(pattern, authors, name)
    return name


@FORMS
@pytest.mark.parametrize("name", ["fastvit_s12", "fastvit_sa12"])
@torch.no_grad()
def test_original_names(name, folded):
    theirs, ours = theirs_small(name, folded=folded).double(), ours_small(name, folded=folded).double()
    state = {to_original_names(key, name == "fastvit_sa12"): value for key, value in theirs.state_dict().items()}
    assert not any("stages" in key for key in state)
    if not folded:
        assert checkpoint_filter_fn(state, theirs).keys() == theirs.state_dict().keys() != state.keys()
    report = vt.load_weights(ours, state)
    assert (report.source, report.num_loaded) == ("the original FastViT", len(ours.state_dict()))
    images = torch.randn(1, 3, 64, 64).double()
    assert error(ours(images), theirs(images)) < TOLERANCE


@FORMS
@torch.no_grad()
def test_color_weights_adapted_to_gray_images(folded):
    """The stem has two branches on the image's channels, both of which are adapted."""
    theirs = theirs_small("fastvit_t8", folded=folded).double()
    ours = ours_small("fastvit_t8", folded=folded, num_channels=1).double()
    report = vt.load_weights(ours, theirs.state_dict())
    assert len(report.adapted) == (1 if folded else 2)
    gray = torch.randn(1, 1, 64, 64).double()
    assert error(ours(gray), theirs(gray.expand(-1, 3, -1, -1))) < TOLERANCE


@pytest.mark.parametrize("size", [(1, 1), (33, 65)])
def test_odd_sizes_are_padded(size):
    features = fill(ours_small("fastvit_sa12")).features(torch.randn(1, 3, *size))
    cells = [tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32)]
    assert [tuple(m.values.shape[2:]) for m in features.maps] == cells
    assert features.grid == cells[-1]


def test_any_mixer_in_the_attention_stages():
    model = fill(ours_small("fastvit_sa12", mixer={"mixer": "attention", "temperature": 0.5}, num_attention_stages=2))
    assert [isinstance(block, AttentionBlock) for block in model.blocks] == [False, False, True, True, True, True]
    assert {block.mixer.attend.temperature for block in model.blocks[2:]} == {0.5}
    with vt.record(model) as trace, torch.no_grad():
        model(torch.randn(2, 3, 57, 78))
    assert list(trace) == ["blocks.2", "blocks.3", "blocks.4", "blocks.5"]
    assert trace["blocks.2"].weights.shape == (2, 2, 20, 20)
    assert trace["blocks.5"].query_grid == (2, 3)


def test_initialization_of_the_paper():
    torch.manual_seed(0)
    model = vt.create_model("fastvit_sa12", depths=(1, 1, 1, 1))
    first, last = model.blocks[0], model.blocks[-1]
    for weight in (first.mlp.conv.conv.weight, first.mlp.fc1.weight, last.mixer.qkv.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert first.mlp.fc2.bias.abs().max() == 0
    assert last.mixer.qkv.bias is None
    for scale in (first.mixer.scale, first.scale, last.scale1, last.scale2):
        assert scale.gamma.mean().item() == pytest.approx(1e-5)


def test_every_variant_has_a_public_weight():
    assert {name.split(".")[0] for name in vt.list_weights("fastvit*")} == set(VARIANTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 2)}, r"depths must have 4 numbers, one per stage; got \(2, 2, 2\)"),
        ({"dims": (32, 64, 96, 192)}, r"dims must each be a multiple of the one before, got \(32, 64, 96, 192\)"),
        ({"num_attention_stages": 5}, "num_attention_stages must be at most 4, got 5"),
        ({"num_attention_stages": 1, "head_dim": 36}, "must be multiples of head_dim=36, got 512"),
        (
            {"mixer": "performer"},
            "'performer' would not be used, all stages have RepMixer; set num_attention_stages=1",
        ),
        ({"folded": True}, "FastViTConfig has no option 'folded'"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        FastViTConfig().override(**options)
    assert "\n" not in str(caught.value)
