"""ResNet equals torchvision and timm with the same weights."""

import pytest
import timm
import torch
import torchvision
from torch import nn

import vitreous as vt
from tests.family import others_slowly
from tests.parity import error, fill
from vitreous.models.resnet import VARIANTS

TOLERANCE = 1e-5


def tiny(**overrides):
    return fill(
        vt.create_model("resnet18", **({"depths": (1, 1, 1, 1), "image_size": 64, "num_classes": 5} | overrides))
    )


def torchvision_twin(name, **options):
    return fill(torchvision.models.get_model(name, **options))


def assert_every_branch_matters(model, images):
    """Sensitivity check: reducing any block to its shortcut changes the output."""
    expected = model(images)
    for index, block in enumerate(model.blocks):
        original, block.forward = block.forward, (block.downsample or nn.Identity()).forward
        moved = error(model(images), expected)
        block.forward = original
        assert moved > 1e-2, f"block {index} does not affect the output ({moved:.1e})"
    assert error(model(images), expected) == 0


THEIRS = {
    "torchvision resnet18": lambda: torchvision_twin("resnet18"),
    "torchvision resnet50": lambda: torchvision_twin("resnet50"),
    "timm resnet18": lambda: fill(timm.create_model("resnet18")),
}


@pytest.mark.parametrize("kind", THEIRS)
@torch.no_grad()
def test_parity(kind):
    theirs, ours = THEIRS[kind](), vt.create_model(kind.split()[1])
    report = vt.load_weights(ours.eval(), theirs.state_dict())
    assert (report.source, report.num_loaded) == ("torchvision or timm", len(ours.state_dict()))
    for size in ((64, 64), (50, 70)):
        images = torch.randn(2, 3, *size)
        assert error(ours(images), theirs(images)) < TOLERANCE
    assert_every_branch_matters(ours, images)


@torch.no_grad()
def test_maps_equal_timm():
    theirs = fill(timm.create_model("resnet18", features_only=True))
    ours = vt.create_model("resnet18", num_classes=0).eval()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(1, 3, 50, 70)
    features, (_, *expected) = ours.features(images), theirs(images)
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(features.maps, expected, strict=True))
    assert [m.stride for m in features.maps] == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert features.grid == (2, 3)
    assert torch.equal(features.tokens[0, 4], expected[-1][0, :, 1, 1])


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_names_shapes_and_counts_equal_torchvision_on_the_meta_device(name):
    with torch.device("meta"):
        ours, theirs = vt.create_model(name), torchvision.models.get_model(name)
        report = vt.load_weights(ours, theirs.state_dict())
    assert report.num_loaded == len(ours.state_dict()) == len(theirs.state_dict())
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_batch_norm_statistics_equal_torchvision():
    theirs = torchvision_twin("resnet18", num_classes=5).train()
    ours = vt.create_model("resnet18", num_classes=5).train()
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(4, 3, 64, 64)
    assert error(ours(images), theirs(images)) < TOLERANCE
    assert ours.stages[3][1].bn2.num_batches_tracked == theirs.layer4[1].bn2.num_batches_tracked == 1
    assert error(ours.stages[3][1].bn2.running_var, theirs.layer4[1].bn2.running_var) < TOLERANCE


def test_files_without_batch_counter():
    """Older checkpoints lack BatchNorm's batch counter."""
    state = {k: v for k, v in torchvision_twin("resnet18").state_dict().items() if "num_batches" not in k}
    assert len(state) == 102
    model = vt.create_model("resnet18").eval()
    report = vt.load_weights(model, state)
    assert not report.fresh
    assert report.num_loaded == len(model.state_dict()) == 122
    assert model.stem.norm.num_batches_tracked == 0


def test_files_with_missing_statistics_or_extra_blocks_raise():
    state = torchvision_twin("resnet18").state_dict()
    del state["layer2.0.downsample.1.running_mean"]
    with pytest.raises(ValueError, match=r"1 missing \(stages.1.0.downsample.1.running_mean\)"):
        vt.load_weights(vt.create_model("resnet18"), state)
    with pytest.raises(ValueError, match=r"unknown \(layer1.2.conv1.weight"):
        vt.load_weights(vt.create_model("resnet18"), torchvision_twin("resnet34").state_dict())


def test_a_torchvision_file_by_the_name_of_its_model(tmp_path):
    theirs = torchvision_twin("resnet18", num_classes=5)
    torch.save(theirs.state_dict(), tmp_path / "resnet18.pth")
    model = vt.load(tmp_path / "resnet18.pth", model="resnet18").eval()
    images = torch.randn(1, 3, 64, 64)
    assert error(model(images), theirs(images)) < TOLERANCE


def test_rgb_filters_are_adapted_to_other_channels():
    source, model = tiny(), tiny(num_channels=1)
    vt.load_weights(model, source.state_dict())
    gray = torch.randn(2, 1, 64, 64)
    assert error(model(gray), source(gray.expand(-1, 3, -1, -1))) < TOLERANCE


@pytest.mark.parametrize(("stem", "finest"), [("imagenet", 4), ("small", 1)])
@pytest.mark.parametrize("size", [(32, 32), (50, 70), (1, 1)])
def test_strides_of_both_stems(stem, finest, size):
    model = tiny(stem=stem)
    features = model.features(torch.randn(1, 3, *size))
    strides = [finest, 2 * finest, 4 * finest, 8 * finest]
    assert model.strides == tuple((stride, stride) for stride in strides)
    cells = [tuple(-(-side // stride) for side in size) for stride in strides]
    assert [tuple(m.values.shape[2:]) for m in features.maps] == cells
    assert features.grid == cells[-1]


def test_blocks_are_the_residual_ones_in_order():
    blocks = vt.create_model("resnet34").blocks
    assert [block.conv1.out_channels for block in blocks] == [64] * 3 + [128] * 4 + [256] * 6 + [512] * 3


@pytest.mark.parametrize(("block", "last"), [("basic", "bn2"), ("bottleneck", "bn3")])
def test_branches_are_zero_initialized_by_default(block, last):
    for zero in (True, False):
        model = vt.create_model("resnet18", block=block, depths=(1, 1, 1, 1), zero_init_residual=zero)
        assert {getattr(b, last).weight.abs().max().item() for b in model.blocks} == {0.0 if zero else 1.0}


@pytest.mark.parametrize(("stem", "size"), [("imagenet", 7), ("small", 3)])
def test_convolutions_are_initialized_as_in_torchvision(stem, size):
    model = vt.create_model("resnet18", stem=stem, num_channels=8)
    assert model.stem.conv.weight.std().item() == pytest.approx((2 / (64 * size**2)) ** 0.5, rel=0.03)
    assert model.stages[3][1].conv2.weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


def test_no_attention_to_record():
    with pytest.raises(ValueError, match="ResNet has no attention to record"), vt.record(tiny()):
        pass


def test_a_saved_config_is_read_back(tmp_path):
    model = tiny(depths=[1, 2, 1, 1], stem="small", zero_init_residual=False)
    vt.save(model, tmp_path / "model.safetensors")
    again = vt.load(tmp_path / "model.safetensors").eval()
    assert again.config == model.config
    assert again.config.depths == (1, 2, 1, 1)
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 2)}, r"depths must have 4 numbers, one per stage; got \(2, 2, 2\)"),
        ({"depths": 8}, "depths must be a sequence of values, got 8"),
        ({"depths": "2222"}, "depths must be a sequence of values, got '2222'"),
        ({"depths": (2, 2, 0, 2)}, "each of depths must be at least 1, got 0"),
        ({"depths": (2, 2, 2.5, 2)}, "each of depths must be a whole number, got 2.5"),
        ({"depths": (2, 2, 10**9, 2)}, "at most 1024 blocks in all, got 1000000006"),
        ({"block": "botleneck"}, "did you mean 'bottleneck'"),
        ({"stem": "patch"}, "stem must be one of imagenet, small"),
        ({"depth": 3}, "has no option 'depth'"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        vt.create_model("resnet18", **options)
    assert "\n" not in str(caught.value)
