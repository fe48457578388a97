"""ViT only: all position encodings, token dropping, initialization."""

import pytest
import torch

import vitreous as vt
from tests.parity import error, fill

POSITIONS = ["none", "learned", "learned_2d", "sincos_1d", "sincos_2d", "relative", "rope"]


def tiny(**overrides):
    return fill(vt.create_model("vit_tiny_16", depth=2, image_size=64, num_classes=5, **overrides))


def swap_patches(images):
    """Swap the left and right half of the image."""
    return torch.cat([images[..., 32:], images[..., :32]], dim=-1)


@pytest.mark.parametrize("position", POSITIONS)
def test_order_matters_only_with_positions(position):
    """Without positions the class token cannot tell an image from its shuffled patches."""
    model, images = tiny(position=position), torch.randn(1, 3, 64, 64)
    moved = error(model(swap_patches(images)), model(images))
    assert moved < 1e-5 if position == "none" else moved > 1e-3


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("size", [(64, 64), (32, 128), (48, 80)])
def test_every_position_takes_any_size(position, size):
    assert tiny(position=position)(torch.randn(1, 3, *size)).isfinite().all()


def test_equivariance_without_positions():
    """Shifting by whole patches permutes the tokens."""
    model, images = tiny(position="none"), torch.randn(2, 3, 64, 64)
    shifted = torch.roll(images, (16, -32), dims=(2, 3))
    before = model.features(images).maps[0].values
    after = model.features(shifted).maps[0].values
    assert error(after, torch.roll(before, (1, -2), dims=(2, 3))) < 1e-5


def test_dropped_tokens_leave_no_map():
    model = tiny(token_drop_rate=0.5).train()
    features = model.features(torch.randn(2, 3, 64, 64))
    assert features.tokens.shape[1] == 1 + 8
    assert features.grid is None
    assert features.maps == ()
    assert model.eval().features(torch.randn(2, 3, 64, 64)).tokens.shape[1] == 1 + 16


def test_non_square_patches():
    model = fill(vt.create_model("vit_tiny_16", patch_size=(8, 16), image_size=(32, 64), depth=1))
    assert model.features(torch.randn(1, 3, 32, 64)).maps[0].values.shape[2:] == (4, 4)
    assert model.strides == ((8, 16),)


def test_token_order_is_class_distillation_registers_patches():
    model = fill(vt.create_model("deit_tiny_distilled_16", image_size=32, depth=1, num_registers=2))
    tokens = model.embed(torch.zeros(1, 3, 32, 32), (2, 2))[0]
    table = model.position.table[0]
    assert torch.equal(tokens[0], model.class_token[0, 0] + table[0])
    assert torch.equal(tokens[1], model.distill_token[0, 0] + table[1])
    assert torch.equal(tokens[2:4], model.registers[0])
    assert torch.allclose(tokens[4:], model.stem.proj.bias + table[2:])


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooling_leaves_the_prefix_out(pool):
    model, images = tiny(pool=pool, num_registers=3), torch.randn(2, 3, 64, 64)
    features = model.features(images)
    cells = features.maps[0].values.flatten(2)
    expected = cells.mean(-1) if pool == "mean" else cells.amax(-1)
    assert error(model.head(expected), model(images)) < 1e-6


def test_initialization_of_vit():
    model = vt.create_model("vit_base_16", depth=1)
    mlp = model.blocks[0].mlp.fc1
    limit = (6 / (768 + 3072)) ** 0.5
    assert mlp.weight.abs().max() <= limit
    assert mlp.weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.01)
    assert model.stem.proj.weight.std().item() == pytest.approx((1 / 768) ** 0.5, rel=0.01)
    assert model.position.table.std().item() == pytest.approx(0.02, rel=0.05)
    assert all(p.abs().max() == 0 for name, p in model.named_parameters() if name.endswith("bias"))
    assert model.class_token.abs().max() == 0


def test_initialization_of_deit():
    model = vt.create_model("deit_base_16", depth=1)
    for linear in (model.blocks[0].mlp.fc1, model.blocks[0].mixer.qkv, model.head):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.02)
        assert linear.bias.abs().max() == 0
    # truncated at ±2 absolute, so that tails beyond 2σ remain
    beyond = (model.blocks[0].mlp.fc1.weight.abs() > 0.04).float().mean().item()
    assert beyond == pytest.approx(0.0455, rel=0.05)


def test_drop_path_grows_with_depth():
    model = vt.create_model("vit_tiny_16", depth=5, drop_path_rate=0.4)
    assert [block.drop_path.rate for block in model.blocks] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
