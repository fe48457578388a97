"""A pyramid runs its stages in sequence; the ViT with downsampling equals a direct implementation."""

import pytest
import torch
import torch.nn.functional as F

import vitreous as vt
from tests.family import small
from tests.parity import TOLERANCE, assert_every_block_matters, error
from vitreous.layers.position import resample


def by_hand(model, images):
    """Direct implementation: patches, then blocks with strided convolutions in between."""
    first = model.stages[0]
    x = F.conv2d(images, first.downsample.proj.weight, first.downsample.proj.bias, stride=16)
    grid = tuple(x.shape[2:])
    x = x.flatten(2).transpose(1, 2) + resample(first.position.table, first.position.grid, grid)
    for index, block in enumerate(model.blocks):
        x = block(x, grid)
        if index in (4, 8):
            conv = model.stages[1 if index == 4 else 2].downsample.conv
            x = F.conv2d(x.transpose(1, 2).unflatten(2, grid), conv.weight, conv.bias, stride=2, padding=1)
            grid = tuple(x.shape[2:])
            x = x.flatten(2).transpose(1, 2)
    return model.head(model.norm(x).mean(1))


@pytest.mark.parametrize("size", [(64, 64), (96, 240)])
def test_downsampling_between_layers(size):
    model, images = small("vit_down_tiny_16"), torch.randn(2, 3, *size)
    with torch.no_grad():
        assert error(model(images), by_hand(model, images)) < TOLERANCE


def test_every_block_matters():
    model, images = small("vit_down_tiny_16"), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert_every_block_matters(model, lambda: model(images))


def test_the_cost_falls_with_the_tokens():
    """Both have twelve blocks, seven of which are wider, on a quarter or a sixteenth of the tokens."""
    plain, down = vt.cost("vit_tiny_16"), vt.cost("vit_down_tiny_16")
    assert down.attention_bytes < plain.attention_bytes
    assert down.parameters > plain.parameters


@pytest.mark.parametrize("position", ["none", "learned", "sincos_2d", "relative", "rope"])
@pytest.mark.parametrize("downsample", ["conv", "merge", "patch"])
def test_options(position, downsample):
    stages = [
        {"dim": 16, "depth": 1, "num_heads": 2, "downsample": downsample},
        {"dim": 32, "depth": 1, "num_heads": 4, "downsample": downsample},
    ]
    model = small("vit_down_tiny_16", patch_size=4, stages=stages, position=position, layer_scale=0.1)
    features = model.features(torch.randn(1, 3, 33, 50))
    assert features.grid == (5, 7)
    assert [m.stride for m in features.maps] == [(4, 4), (8, 8)]
    assert torch.equal(features.maps[-1].values.flatten(2).transpose(1, 2), features.tokens)
