"""PVT equals transformers with the same weights; its class token is added in the last stage."""

import re

import pytest
import torch
import transformers
from torch import nn

import vitreous as vt
from tests.family import others_slowly, small
from tests.parity import (
    TOLERANCE,
    Logits,
    assert_same_macs,
    assert_same_parameters,
    error,
    fill,
    same,
)
from vitreous.layers.reduction import Reduction
from vitreous.models.pvt import VARIANTS

ONE_EPS = {"embed_norm_eps": 1e-6, "mixer": Reduction(ratios=(8, 4, 2, 1), norm_eps=1e-6)}


def twin(name, image_size=224, classes=1000):
    """Create transformers' model, which supports only square images of its configured size."""
    config = transformers.PvtConfig(image_size=image_size, depths=VARIANTS[name].depths, num_labels=classes)
    return Logits(transformers.PvtForImageClassification(config))


def with_the_authors_eps(model):
    """Set ε as in the authors' code: PyTorch's default in norms of patches and keys (transformers has one for all)."""
    for path, module in model.named_modules():
        if re.search(r"(patch_embeddings.\d|attention.self).layer_norm$", path):
            module.eps = 1e-5
    return model


def test_transformers_at_native_size():
    theirs = fill(with_the_authors_eps(twin("pvt_tiny")))
    same(vt.create_model("pvt_tiny"), theirs, torch.randn(1, 3, 224, 224), every_block=False)


def test_transformers_as_it_is():
    ours = vt.create_model("pvt_tiny", image_size=64, **ONE_EPS)
    report = same(ours, fill(twin("pvt_tiny", 64)), torch.randn(1, 3, 64, 64))
    assert (report.source, report.adapted, report.fresh) == ("transformers", [], [])


def test_transformers_non_square():
    """Position tables are replaced, since the model itself can be built for squares only."""
    theirs = with_the_authors_eps(twin("pvt_tiny", 64))
    for stage, embed in enumerate(theirs.model.pvt.encoder.patch_embeddings):
        cells = (64 // (4 << stage)) * (96 // (4 << stage))
        embed.position_embeddings = nn.Parameter(torch.empty(1, cells + (stage == 3), VARIANTS["pvt_tiny"].dims[stage]))
    same(vt.create_model("pvt_tiny", image_size=(64, 96)), fill(theirs), torch.randn(2, 3, 64, 96))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_transformers_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: twin(name, classes=classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_transformers_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: twin(name, classes=classes))


def to_original_names(state):
    """Convert to the original names: stages from 1, keys and values fused."""
    state = {name.removeprefix("pvt.encoder."): tensor for name, tensor in state.items()}
    for name in [name for name in state if ".key." in name]:
        state[name.replace(".key.", ".kv.")] = torch.cat([state.pop(name), state.pop(name.replace("key", "value"))])
    renamed = {}
    for name, tensor in state.items():
        name = re.sub(r"patch_embeddings.3.cls_token", "cls_token", name)
        name = re.sub(r"patch_embeddings.(\d).position_embeddings", lambda m: f"pos_embed{int(m[1]) + 1}", name)
        name = re.sub(r"patch_embeddings.(\d)", lambda m: f"patch_embed{int(m[1]) + 1}", name)
        name = re.sub(r"block.(\d)", lambda m: f"block{int(m[1]) + 1}", name)
        for theirs, authors in (
            ("attention.self.query", "attn.q"),
            ("attention.self.kv", "attn.kv"),
            ("attention.self.sequence_reduction", "attn.sr"),
            ("attention.self.layer_norm", "attn.norm"),
            ("attention.output.dense", "attn.proj"),
            ("layer_norm_", "norm"),
            ("layer_norm", "norm"),
            ("projection", "proj"),
            ("mlp.dense", "mlp.fc"),
            ("classifier", "head"),
        ):
            name = name.replace(theirs, authors)
        renamed[name] = tensor
    return renamed


def test_original_names():
    theirs = fill(with_the_authors_eps(twin("pvt_tiny", 64)))
    state = to_original_names(theirs.state_dict())
    assert {
        "cls_token",
        "pos_embed4",
        "patch_embed1.norm.bias",
        "block1.0.attn.sr.weight",
        "block4.1.mlp.fc2.bias",
    } <= (state.keys())
    ours = vt.create_model("pvt_tiny", image_size=64).eval()
    report = vt.load_weights(ours, {f"module.{name}": tensor for name, tensor in state.items()})
    assert (report.source, report.num_loaded) == ("PVT", len(ours.state_dict()))
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert error(ours(images), theirs(images)) < TOLERANCE


def test_positions_of_all_stages_are_resampled_while_loading():
    theirs = fill(twin("pvt_tiny", 64))
    ours = vt.create_model("pvt_tiny", image_size=(96, 128))
    report = vt.load_weights(ours, theirs.state_dict())
    assert [line.split(": ")[1] for line in report.adapted] == [
        "made for a grid of 16×16, resampled to 24×32",
        "made for a grid of 8×8, resampled to 12×16",
        "made for a grid of 4×4, resampled to 6×8",
        "made for a grid of 2×2, resampled to 3×4",
    ]
    with torch.no_grad():
        assert ours(torch.randn(1, 3, 96, 128)).isfinite().all()


def test_the_class_token_is_added_in_the_last_stage():
    model, images = small("pvt_tiny"), torch.randn(2, 3, 57, 78)
    with torch.no_grad(), vt.record(model) as trace:
        features = model.features(images)
    assert (features.grid, features.num_prefix) == ((2, 3), 1)
    assert torch.equal(model.pooled(features), features.tokens[:, 0])
    assert torch.equal(features.maps[-1].values.flatten(2).transpose(1, 2), features.tokens[:, 1:])
    assert [(seen.query_grid, seen.key_grid, seen.num_prefix) for seen in trace.values()][::2] == [
        ((15, 20), (2, 3), 0),
        ((8, 10), (2, 3), 0),
        ((4, 5), (2, 3), 0),
        ((2, 3), (2, 3), 1),
    ]


@pytest.mark.parametrize("size", [(1, 1), (5, 200)])
def test_any_size(size):
    features = small("pvt_tiny").features(torch.randn(1, 3, *size))
    assert features.tokens.isfinite().all()
    assert features.grid == (1, -(-size[1] // 32))


def test_initialization_of_the_paper():
    torch.manual_seed(0)
    model = vt.create_model("pvt_tiny", image_size=64)
    block = model.blocks[-1]
    assert block.mixer.attention.kv.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.mlp.fc1.bias.abs().max() == 0
    assert model.stages[3].class_token.std().item() == pytest.approx(0.02, rel=0.2)
    assert model.stages[0].position.table.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2)}, r"depths must have 4 numbers, one per stage; got \(2, 2\)"),
        ({"mlp_ratios": (4,)}, r"mlp_ratios must have 4 numbers, one per stage; got \(4.0,\)"),
        ({"num_heads": (1, 2, 3, 8)}, "multiple of num_heads, got dim=320, num_heads=3"),
        ({"num_heads": 8}, "num_heads must be a sequence of values, got 8"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        vt.create_model("pvt_tiny", **options)
    assert "\n" not in str(caught.value)
