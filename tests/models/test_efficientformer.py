"""EfficientFormer equals timm with the same weights, and supports grids that timm does not."""

import math
import re

import pytest
import timm
import torch
from timm.models.efficientformer import Attention, MetaBlock1d, checkpoint_filter_fn

import vitreous as vt
from tests.family import others_slowly, small
from tests.parity import TOLERANCE, assert_same_macs, assert_same_parameters, error, fill, same
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import RelativeBias
from vitreous.layers.wide_value import DistanceTable, WideValueAttention
from vitreous.models.efficientformer import VARIANTS, EfficientFormerConfig, PoolBlock

DIMS, DEPTHS = (16, 24, 32, 48), (1, 2, 1, 4)


def timm_small(size, *, num_attention=1, **options):
    """timm's attention supports maps of 7×7 cells only: it is replaced for others."""
    options = {"embed_dims": DIMS, "depths": DEPTHS, "num_vit": num_attention, "num_classes": 5} | options
    theirs = timm.create_model("efficientformer_l1", **options)
    for block in theirs.stages[-1].blocks:
        if isinstance(block, MetaBlock1d):
            block.token_mixer = Attention(DIMS[-1], resolution=tuple(-(-side // 32) for side in size))
    return fill(theirs)


def ours_small(size, **overrides):
    options = {"dims": DIMS, "depths": DEPTHS, "image_size": size, "num_classes": 5}
    return vt.create_model("efficientformer_l1", **(options | overrides)).eval()


def test_timm_at_the_native_size():
    theirs = fill(timm.create_model("efficientformer_l1"))
    report = same(vt.create_model("efficientformer_l1"), theirs, torch.randn(1, 3, 224, 224), every_block=False)
    assert (report.source, report.adapted, report.fresh) == ("timm", [], [])
    assert report.unused == ["stages.3.blocks.4.token_mixer.attention_bias_idxs"]


@pytest.mark.parametrize("num_attention", [1, 3, 4])
def test_timm_not_square_with_few_many_or_only_attention_blocks(num_attention):
    """In the last stage timm counts the reshape from map to tokens as a block."""
    size = (96, 160)
    theirs = timm_small(size, num_attention=num_attention).double()
    ours = ours_small(size, num_attention=num_attention).double()
    same(ours, theirs, torch.randn(2, 3, *size).double())


@torch.no_grad()
def test_attention_is_that_of_timm_and_sees_its_biases():
    """On random tokens: after random pooling blocks tokens are nearly equal, and biases have no effect."""
    theirs, ours = timm_small((96, 160)).double(), ours_small((96, 160)).double()
    vt.load_weights(ours, theirs.state_dict())
    tokens, mixer = torch.randn(2, 15, DIMS[-1]).double(), ours.blocks[-1].mixer
    expected = theirs.stages[-1].blocks[-1].token_mixer(tokens)
    assert error(mixer(tokens, (3, 5)), expected) < TOLERANCE
    mixer.relative.table.zero_()
    assert error(mixer(tokens, (3, 5)), expected) > 1e-2


@torch.no_grad()
def test_maps_equal_timm():
    theirs, ours = timm_small((64, 96)), ours_small((64, 96))
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(1, 3, 64, 96)
    maps = ours.features(images).maps
    expected = theirs.forward_intermediates(images, norm=True, intermediates_only=True)
    assert [m.stride for m in maps] == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(maps, expected, strict=True))


def test_batch_norm_statistics_equal_timm():
    theirs, ours = timm_small((64, 64)).double().train(), ours_small((64, 64)).double().train()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(4, 3, 64, 64).double()
    assert error(ours(images), theirs(images)) < TOLERANCE
    mine, other = ours.stages[1].blocks[0].mlp.norm2, theirs.stages[1].blocks[0].mlp.norm2
    assert error(mine.running_var, other.running_var) < TOLERANCE


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(name, num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(name, num_classes=classes))


def renamed(name, pairs):
    for pattern, other in pairs:
        name = re.sub(pattern, other, name)
    return name


def to_original_names(name):
    """Convert to names that count stages and downsampling layers together."""
    stem = {"conv1": 0, "norm1": 1, "conv2": 3, "norm2": 4}
    return renamed(
        name,
        (
            (r"^stem\.(\w+)", lambda m: f"patch_embed.{stem[m[1]]}"),
            (r"^stages\.(\d)\.blocks", lambda m: f"network.{2 * int(m[1])}"),
            (r"^stages\.(\d)\.downsample", lambda m: f"network.{2 * int(m[1]) - 1}"),
            (r"(network\.\d)\.conv", r"\1.proj"),
            (r"ls(\d)\.gamma", r"layer_scale_\1"),
            ("head_dist", "dist_head"),
        ),
    )


def as_transformers_named_it(name, num_pool):
    """Convert to the names of transformers releases that included this model."""

    def last_stage(match):
        index = int(match[1])
        kind, index = ("meta4D", index) if index < num_pool else ("meta3D", index - num_pool - 1)
        return f"encoder.last_stage.{kind}_layers.blocks.{index}."

    kinds = {"conv": ("convolution1", "convolution2"), "linear": ("linear_in", "linear_out")}
    name = renamed(
        name,
        (
            (r"^stem\.conv", "patch_embed.convolution"),
            (r"^stem\.norm1", "patch_embed.batchnorm_before"),
            (r"^stem\.norm2", "patch_embed.batchnorm_after"),
            (r"^stages\.3\.blocks\.(\d)\.", last_stage),
            (r"^stages\.(\d)\.blocks", lambda m: f"encoder.intermediate_stages.{2 * int(m[1])}.meta4D_layers.blocks"),
            (r"^stages\.(\d)\.downsample\.", lambda m: f"encoder.intermediate_stages.{2 * int(m[1]) - 1}."),
            (r"(stages\.\d\.)conv", r"\1projection"),
            (r"ls(\d)\.gamma", r"layer_scale_\1"),
            (r"mlp\.norm1", "mlp.batchnorm_before"),
            (r"mlp\.norm2", "mlp.batchnorm_after"),
            (r"(blocks\.\d)\.norm", r"\1.layernorm"),
            (r"^norm", "layernorm"),
            (r"token_mixer\.proj", "token_mixer.projection"),
        ),
    )
    convolution_or_matrix = kinds["linear" if "meta3D" in name else "conv"]
    name = re.sub(r"mlp\.fc(\d)", lambda m: f"mlp.{convolution_or_matrix[int(m[1]) - 1]}", name)
    if name.startswith("head"):
        return name.replace("head_dist", "distillation_classifier").replace("head", "classifier")
    return f"efficientformer.{name}"


@pytest.mark.parametrize("source", ["the original EfficientFormer", "transformers"])
@pytest.mark.parametrize("num_attention", [1, 4])
def test_third_party_names(source, num_attention):
    theirs = timm_small((64, 64), num_attention=num_attention)
    ours = ours_small((64, 64), num_attention=num_attention)
    if source == "transformers":
        state = {as_transformers_named_it(name, 4 - num_attention): t for name, t in theirs.state_dict().items()}
    else:
        state = {to_original_names(name): tensor for name, tensor in theirs.state_dict().items()}
        assert checkpoint_filter_fn(state, theirs).keys() == theirs.state_dict().keys()
    shared = {f"{part}.{p}" for part in ("norm", "head") for p in ("weight", "bias")}
    assert state.keys() & theirs.state_dict().keys() <= shared
    report = vt.load_weights(ours, state)
    assert (report.source, report.num_loaded) == (source, len(ours.state_dict()))
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert error(ours(images), theirs(images)) < TOLERANCE


def attention(grid, *, dim=12, num_heads=2, key_dim=4, value_dim=10):
    context = MixerContext(dim=dim, num_heads=num_heads, grid=grid)
    return fill(WideValueAttention(context, key_dim=key_dim, value_dim=value_dim)).double()


@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (4, 2)])
@torch.no_grad()
def test_attention_is_that_of_the_equation(grid):
    """Head by head and query by query."""
    mixer, cells = attention(grid), [(y, x) for y in range(grid[0]) for x in range(grid[1])]
    x = torch.randn(2, len(cells), 12).double()
    expected = torch.zeros(2, len(cells), 20).double()
    for image, tokens in enumerate(x):
        for head, rows in enumerate(mixer.qkv(tokens).split(18, dim=1)):
            q, k, v = rows.split((4, 4, 10), dim=1)
            for i, one in enumerate(cells):
                biases = [mixer.relative.table[0, distance_row(one, other, grid), head] for other in cells]
                weights = (k @ q[i] / math.sqrt(4) + torch.stack(biases)).softmax(0)
                expected[image, i, 10 * head : 10 * head + 10] = weights @ v
    assert error(mixer(x, grid), mixer.proj(expected)) < 1e-10


def distance_row(one, other, grid):
    return abs(one[0] - other[0]) * grid[1] + abs(one[1] - other[1])


@pytest.mark.parametrize("grid", [(1, 1), (7, 7), (3, 5), (7, 10), (14, 9)])
@torch.no_grad()
def test_a_distance_table_equals_a_symmetric_offset_table_on_any_grid(grid):
    mixer, twin = attention((7, 5)), RelativeBias((7, 5), 2).double()
    signed = [(y, x) for y in range(-6, 7) for x in range(-4, 5)]
    twin.table[0] = torch.stack([mixer.relative.table[0, abs(y) * 5 + abs(x)] for y, x in signed])
    assert error(mixer.bias(grid), twin(grid)) < 1e-12
    assert error(mixer.relative(grid), mixer.bias(grid)[:, 0].T[None]) < 1e-12


@torch.no_grad()
def test_tables_are_resampled_to_another_size(tmp_path):
    model = fill(ours_small((64, 96)))
    vt.save(model, tmp_path / "model.safetensors")
    larger = vt.load(tmp_path / "model.safetensors", image_size=(96, 128)).eval()
    (table,) = (module for module in larger.modules() if isinstance(module, DistanceTable))
    assert table.grid == (3, 4)
    images = torch.randn(1, 3, 96, 128)
    assert error(larger(images), model(images)) < TOLERANCE


def test_third_party_tables_are_resampled():
    report = vt.load_weights(ours_small((64, 160)), timm_small((224, 224)).state_dict())
    assert report.adapted == ["stages.3.blocks.3.mixer.relative.table: made for a grid of 7×7, resampled to 2×5"]


@pytest.mark.parametrize("size", [(1, 1), (33, 65), (57, 78)])
def test_odd_sizes_are_padded(size):
    features = fill(ours_small((64, 64))).features(torch.randn(1, 3, *size))
    cells = [tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32)]
    assert [tuple(m.values.shape[2:]) for m in features.maps] == cells
    assert features.grid == cells[-1]
    assert features.tokens.isfinite().all()


@torch.no_grad()
def test_two_heads_see_the_same_mean():
    model, images = small("efficientformer_l1", dims=DIMS, depths=DEPTHS), torch.randn(2, 3, 64, 64)
    features = model.features(images)
    heads = model.heads(features)
    assert list(heads) == ["class", "distill"]
    assert torch.equal(heads["distill"], model.distill_head(features.tokens.mean(1)))
    assert error(heads["distill"], heads["class"]) > 0.1


def test_without_a_teacher_there_is_one_head():
    theirs, ours = timm_small((64, 64)), ours_small((64, 64), distilled=False)
    report = vt.load_weights(ours, theirs.state_dict())
    assert {"head_dist.weight", "head_dist.bias"} < set(report.unused)
    assert list(ours.heads(ours.features(torch.randn(1, 3, 64, 64)))) == ["class"]


@pytest.mark.parametrize("mixer", ["performer", "window", {"mixer": "attention", "temperature": 0.5}])
def test_any_mixer_in_the_attention_blocks(mixer):
    model = fill(ours_small((64, 64), num_attention=2, mixer=mixer))
    *pooling, first, second = model.blocks
    assert {type(block) for block in pooling} == {PoolBlock}
    assert isinstance(first.mixer, WideValueAttention) == isinstance(second.mixer, WideValueAttention)
    if isinstance(mixer, dict):
        assert first.mixer.attend.temperature == 0.5
    else:
        assert not isinstance(first.mixer, WideValueAttention)
    model(torch.randn(2, 3, 57, 78)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(("num_attention", "expected"), [(0, 0), (3, 3), (9, 4)])
def test_attention_blocks_end_the_last_stage(num_attention, expected):
    model = ours_small((64, 64), num_attention=num_attention)
    kinds = [isinstance(block, PoolBlock) for block in model.blocks]
    assert kinds == [True] * (8 - expected) + [False] * expected
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 5)


def test_attention_is_recorded():
    model = ours_small((64, 64), num_attention=2)
    with vt.record(model) as trace, torch.no_grad():
        model(torch.randn(2, 3, 57, 78))
    assert list(trace) == ["blocks.6", "blocks.7"]
    assert trace["blocks.6"].weights.shape == (2, 8, 6, 6)
    assert trace["blocks.7"].query_grid == (2, 3)


def test_initialization_of_the_paper():
    torch.manual_seed(0)
    model = vt.create_model("efficientformer_l1", depths=(1, 1, 1, 1), image_size=64)
    first, *_, last = model.blocks
    for weight in (first.mlp.fc1.weight, last.mixer.qkv.weight, last.mlp.fc2.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert first.mlp.fc1.bias.abs().max() == last.mixer.relative.table.abs().max() == 0
    assert torch.cat([first.scale1.gamma, last.scale2.gamma]).tolist() == pytest.approx([1e-5] * (48 + 448))


def test_layer_scale_may_be_left_out():
    model = ours_small((64, 64), layer_scale=None)
    assert not [name for name, _ in model.named_parameters() if "gamma" in name]


def test_every_variant_has_a_public_weight():
    assert {name.split(".")[0] for name in vt.list_weights("efficientformer*")} == set(VARIANTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 2)}, r"depths must have 4 numbers, one per stage; got \(2, 2, 2\)"),
        ({"dims": (47, 96, 224, 448)}, r"the first of dims must be even, .*; got \(47, 96, 224, 448\)"),
        ({"num_heads": 0}, "num_heads must be at least 1"),
        ({"num_attention": -1}, "num_attention must not be negative, got -1"),
        ({"mixer": "atention"}, "did you mean 'attention'"),
        ({"num_atention": 1}, "has no option 'num_atention'; did you mean 'num_attention'"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        EfficientFormerConfig().override(**options)
    assert "\n" not in str(caught.value)
