"""CoAtNet equals timm with the same weights."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import timm
import torch
from einops import rearrange
from torch import nn

import vitreous as vt
from tests.family import others_slowly
from tests.parity import TOLERANCE, assert_same_macs, assert_same_parameters, error, fill, same
from vitreous.layers.mixer import Mixer
from vitreous.models.coatnet import VARIANTS, CoAtNetConfig, HalvingBlock, ProjectedMixer

SHALLOW = (1, 2, 2, 2)


def theirs_of(name, **options):
    return timm.create_model(f"{name}_224", **options)


def tiny(**overrides):
    options = {"dims": (16, 24, 32, 64), "depths": SHALLOW, "stem_dims": (8, 12), "image_size": 64, "num_classes": 5}
    return fill(vt.create_model("coatnet_0", **(options | overrides)))


def only_the_shortcut(block):
    if isinstance(block, HalvingBlock):
        return lambda x, grid: block.shortcut(rearrange(block.pool(x), "b c y x -> b (y x) c"))
    return lambda x, *_: getattr(block, "shortcut", nn.Identity())(x)


@torch.no_grad()
def assert_every_block_matters(model, images):
    """Sensitivity check: reducing any block to its shortcut changes the output."""
    expected = model(images)
    for index, block in enumerate(model.blocks):
        original, block.forward = block.forward, only_the_shortcut(block)
        moved = error(model(images), expected)
        block.forward = original
        assert moved > 1e-2, f"block {index} does not affect the output ({moved:.1e})"
    assert error(model(images), expected) == 0


def test_timm_at_the_native_size():
    theirs = fill(theirs_of("coatnet_nano_rw"))
    report = same(vt.create_model("coatnet_nano_rw"), theirs, torch.randn(1, 3, 224, 224), every_block=False)
    assert report.source == "timm"


@pytest.mark.parametrize("name", ["coatnet_0", *(name for name in VARIANTS if name.endswith("_rw"))])
def test_timm_non_square_and_shallow(name):
    """All kinds of block, with smaller widths (full widths are compared on the meta device)."""
    size, dims = (64, 96), (32, 64, 96, 128)
    options = {"embed_dim": dims, "depths": SHALLOW, "num_classes": 7}
    if VARIANTS[name].hidden_head:
        options["head_hidden_size"] = dims[-1]
    theirs = fill(theirs_of(name, img_size=size, **options)).double()
    ours = vt.create_model(name, image_size=size, dims=dims, depths=SHALLOW, num_classes=7).double()
    images = torch.randn(1, 3, *size).double()
    same(ours, theirs, images, every_block=False)
    assert_every_block_matters(ours, images)


@torch.no_grad()
def test_maps_equal_timm():
    theirs = fill(theirs_of("coatnet_nano_rw", img_size=64))
    ours = vt.create_model("coatnet_nano_rw", image_size=64).eval()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(1, 3, 64, 64)
    _, *expected = theirs.forward_intermediates(images, norm=True, intermediates_only=True)
    maps = ours.features(images).maps
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(maps, expected, strict=True))
    assert [m.stride for m in maps] == [(4, 4), (8, 8), (16, 16), (32, 32)]


def test_batch_norm_statistics_equal_timm():
    options = {"img_size": 64, "depths": (1, 1, 1, 1), "num_classes": 5}
    theirs = fill(theirs_of("coatnet_nano_rw", **options)).double().train()
    ours = vt.create_model("coatnet_nano_rw", image_size=64, depths=(1, 1, 1, 1), num_classes=5).double().train()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(4, 3, 64, 64).double()
    assert error(ours(images), theirs(images)) < TOLERANCE
    mine, other = ours.stages[1][0].branch.norm2, theirs.stages[1].blocks[0].norm2
    assert error(mine.running_var, other.running_var) < TOLERANCE


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: theirs_of(name, num_classes=classes))


SMALLEST = ("coatnet_0", "coatnet_nano_rw")


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: theirs_of(name, num_classes=classes))


@pytest.mark.parametrize("size", [(1, 1), (33, 65), (57, 78)])
def test_odd_sizes_are_padded(size):
    features = tiny().features(torch.randn(1, 3, *size))
    cells = [tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32)]
    assert [tuple(m.values.shape[2:]) for m in features.maps] == cells
    assert features.grid == cells[-1]


@torch.no_grad()
def test_biases_are_resampled_to_another_size(tmp_path):
    model = tiny()
    vt.save(model, tmp_path / "model.safetensors")
    larger = vt.load(tmp_path / "model.safetensors", image_size=(96, 128)).eval()
    assert larger.stages[2][1].mixer.relative.grid == (6, 8)
    images = torch.randn(1, 3, 96, 128)
    assert error(larger(images), model(images)) < TOLERANCE


class Means(nn.Module):
    """Replace every token by the mean over all tokens."""

    def forward(self, x, grid, num_prefix=0):
        return x.mean(1, keepdim=True).expand_as(x)


@dataclass(frozen=True, kw_only=True)
class Mean(Mixer):
    name: ClassVar[str] = "mean"

    def make(self, context):
        assert context.position == "added"
        return Means()


def test_any_mixer_in_the_attention_stages():
    model = tiny(mixer=Mean())
    assert [type(block.mixer) for block in model.stages[3]] == [ProjectedMixer, Means]
    model(torch.randn(2, 3, 57, 78)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    cooled = tiny(mixer={"mixer": "attention", "temperature": 0.5})
    assert {block.mixer.attend.temperature for block in cooled.stages[2]} == {0.5}


def test_attention_is_recorded_block_by_block():
    model = tiny()
    with vt.record(model) as trace, torch.no_grad():
        model(torch.randn(2, 3, 57, 78))
    assert list(trace) == ["blocks.3", "blocks.4", "blocks.5", "blocks.6"]
    assert trace["blocks.3"].weights.shape == (2, 1, 20, 20)
    assert trace["blocks.5"].query_grid == (2, 3)


def test_the_head_of_the_paper_and_that_of_timm():
    images = torch.randn(2, 3, 64, 64)
    hidden, plain = tiny(), tiny(hidden_head=False)
    assert hidden.pooled(hidden.features(images)).abs().max() < 1
    features = plain.features(images)
    assert torch.equal(plain.pooled(features), features.tokens.mean(1))
    assert torch.equal(features.maps[-1].values.flatten(2).transpose(1, 2), features.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 2)}, r"depths must have 4 numbers, one per stage; got \(2, 2, 2\)"),
        ({"dims": (8, 16, 32)}, r"dims must have 4 numbers, one per stage; got \(8, 16, 32\)"),
        ({"stem_dims": (64,)}, r"stem_dims must have 2 numbers, one per convolution; got \(64,\)"),
        ({"head_dim": 36}, "must be multiples of head_dim=36, got 384"),
        ({"widen": "after", "dims": (96, 200, 384, 768)}, "must be multiples of head_dim=32, got 200"),
        ({"conv": {"acts": "silu"}}, "MBConvOptions has no option 'acts'; did you mean 'act'?"),
        ({"mixer": "atention"}, "did you mean 'attention'"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        CoAtNetConfig().override(**options)
    assert "\n" not in str(caught.value)
