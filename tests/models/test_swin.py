"""Swin equals timm, torchvision and transformers with the same weights.

Sizes are multiples of the window: for others the reference implementations attend to padding.
"""

import re

import pytest
import timm
import torch
import torchvision
import transformers

import vitreous as vt
from tests.family import others_slowly
from tests.parity import (
    TOLERANCE,
    Logits,
    assert_same_macs,
    assert_same_parameters,
    error,
    fill,
    same,
)
from vitreous.layers.window import Window

SMALL = {"depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}  # two blocks per stage, since every second one is shifted
DIM, CLASSES = 32, 10


def ours_small(window, size):
    dims = tuple(DIM << stage for stage in range(4))
    options = {"dims": dims, "num_classes": CLASSES, **SMALL}
    return vt.create_model("swin_tiny", mixer=Window(size=window), image_size=size, **options).eval()


def timm_small(window, size):
    options = {"window_size": window, "img_size": size, "embed_dim": DIM, "num_classes": CLASSES, **SMALL}
    return fill(timm.create_model("swin_tiny_patch4_window7_224", **options))


def torchvision_small(window):
    options = {"window_size": [window, window], "embed_dim": DIM, "num_classes": CLASSES, **SMALL}
    return fill(torchvision.models.SwinTransformer(patch_size=[4, 4], **options))


def transformers_small(window, size):
    options = {"image_size": list(size), "window_size": window, "embed_dim": DIM, "num_labels": CLASSES, **SMALL}
    return fill(transformers.SwinForImageClassification(transformers.SwinConfig(**options)))


def test_timm():
    theirs = fill(timm.create_model("swin_tiny_patch4_window7_224"))
    report = same(vt.create_model("swin_tiny"), theirs, torch.randn(1, 3, 224, 224))
    assert report.source == "timm"
    assert not report.adapted


def test_timm_not_square():
    """In the last stage the 4×8 map is shifted along one axis only."""
    same(ours_small(4, (128, 256)), timm_small(4, (128, 256)), torch.randn(2, 3, 128, 256))


@pytest.mark.parametrize(("window", "size"), [(7, (224, 224)), (4, (128, 256))])
def test_torchvision(window, size):
    report = same(ours_small(window, size), torchvision_small(window), torch.randn(1, 3, *size))
    assert report.source == "torchvision"


@pytest.mark.parametrize(("window", "size"), [(7, (224, 224)), (2, (128, 192))])
def test_transformers(window, size):
    """transformers shifts neither axis if one is no longer than the window: hence the small window."""
    report = same(ours_small(window, size), Logits(transformers_small(window, size)), torch.randn(1, 3, *size))
    assert report.source == "transformers"


def test_transformers_files_carry_the_names_of_version_4(tmp_path):
    theirs, ours = transformers_small(2, (64, 64)), ours_small(2, (64, 64))
    theirs.save_pretrained(tmp_path)
    report = vt.load_weights(ours, tmp_path / "model.safetensors")
    assert (report.source, report.num_loaded) == ("transformers", len(ours.state_dict()))
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert error(ours(images), theirs(images).logits) < TOLERANCE


def as_the_original(name):
    """Convert to the original names, where downsampling belongs to the stage before."""
    name = re.sub(r"layers.(\d).downsample", lambda match: f"layers.{int(match[1]) - 1}.downsample", name)
    return name.replace("head.fc", "head")


def test_original_names():
    theirs, ours = timm_small(4, (128, 128)), ours_small(4, (128, 128))
    state = {as_the_original(name): tensor for name, tensor in theirs.state_dict().items()}
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(64, 16, 16)
    state["layers.0.blocks.1.attn.relative_position_index"] = torch.zeros(16, 16, dtype=torch.long)
    report = vt.load_weights(ours, state)
    assert report.source == "the original Swin"
    assert len(report.unused) == 2
    images = torch.randn(1, 3, 128, 128)
    with torch.no_grad():
        assert error(ours(images), theirs(images)) < TOLERANCE


@torch.no_grad()
def test_maps_equal_timm():
    theirs, ours = timm_small(4, (128, 256)), ours_small(4, (128, 256))
    vt.load_weights(ours, theirs.state_dict())
    images = torch.randn(1, 3, 128, 256)
    maps = ours.features(images).maps
    expected = theirs.forward_intermediates(images, norm=True, intermediates_only=True)
    assert [m.stride for m in maps] == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert all(error(m.values, other) < TOLERANCE for m, other in zip(maps, expected, strict=True))


TIMM_NAMES = {
    **{f"swin_{size}": f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base", "large")},
    **{f"swin_{size}_384": f"swin_{size}_patch4_window12_384" for size in ("base", "large")},
}


@pytest.mark.parametrize("name", others_slowly(TIMM_NAMES))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(TIMM_NAMES[name], num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(TIMM_NAMES))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(TIMM_NAMES[name], num_classes=classes))


@pytest.mark.parametrize(("name", "theirs"), [("swin_tiny", "swin_t"), ("swin_base", "swin_b")])
def test_names_shapes_and_counts_equal_torchvision_on_the_meta_device(name, theirs):
    assert_same_parameters(name, lambda classes: torchvision.models.get_model(theirs, num_classes=classes))


@torch.no_grad()
def test_weights_do_not_depend_on_the_size_that_a_model_is_built_for():
    """Windows larger than the map are cropped to it, and their tables are kept."""
    built_large, built_small = ours_small(7, (224, 224)), ours_small(7, (64, 96))
    report = vt.load_weights(built_small, fill(built_large).state_dict())
    assert not report.adapted
    images = torch.randn(1, 3, 64, 96)
    assert torch.equal(built_small(images), built_large(images))


def test_tables_are_resampled_to_other_windows():
    ours = ours_small(4, (64, 64))
    report = vt.load_weights(ours, timm_small(7, (224, 224)).state_dict())
    assert len(report.adapted) == 8
    assert "made for a grid of 7×7, resampled to 4×4" in report.adapted[0]


@pytest.mark.parametrize("mixer", ["attention", {"mixer": "window", "shift": "never"}])
def test_another_mixer(mixer):
    model = vt.create_model("swin_tiny", mixer=mixer, image_size=64, num_classes=CLASSES, depths=(1, 2, 1, 1))
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 6)}, r"depths must have 4 numbers, one per stage; got \(2, 2, 6\)"),
        ({"num_heads": (3, 6)}, "num_heads must have 4 numbers, one per stage"),
        ({"num_heads": (3, 6, 12, 25)}, "multiple of num_heads, got dim=768, num_heads=25"),
        ({"num_heads": (3, 6, 0, 24)}, "each of num_heads must be at least 1, got 0"),
        ({"window_size": 7}, "has no option 'window_size'"),
        ({"mixer": {"mixer": "window", "sise": 7}}, "Window has no option 'sise'; did you mean 'size'?"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        vt.create_model("swin_tiny", **options)
    assert "\n" not in str(caught.value)
