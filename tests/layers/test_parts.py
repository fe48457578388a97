"""Patch embedding, MLP, LayerScale, DropPath, token dropping, and the two kinds of block."""

import math
from functools import partial

import pytest
import timm.layers
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.parity import error, fill
from vitreous.layers.attention import SelfAttention
from vitreous.layers.block import PostNormBlock, PreNormBlock
from vitreous.layers.drop import DropPath, TokenDrop
from vitreous.layers.init import init_vit
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mlp import GatedMlp, Mlp
from vitreous.layers.norm import LayerScale
from vitreous.layers.patch import ConvStem, PatchEmbed, ResidualStem, Whiten, grid_of, patchify

many = settings(max_examples=60, deadline=None)
CONTEXT = MixerContext(dim=32, num_heads=4, grid=(1, 7))


@many
@given(patch=st.tuples(st.integers(1, 5), st.integers(1, 5)), size=st.tuples(st.integers(5, 23), st.integers(5, 23)))
def test_convolution_and_matrix_product_give_the_same_tokens(patch, size):
    conv = fill(PatchEmbed(patch, 3, 8, method="conv"))
    linear = PatchEmbed(patch, 3, 8)
    linear.load_state_dict(conv.state_dict())
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    tokens = conv(images)
    assert tokens.shape[1] == math.prod(grid_of(size, patch))
    assert error(linear(images), tokens) < 1e-5


def test_patchify_equals_the_loop():
    images = torch.randn(1, 3, 4, 6)
    patches = patchify(images, (2, 3))[0]
    for y in range(2):
        for x in range(2):
            expected = images[0, :, 2 * y : 2 * y + 2, 3 * x : 3 * x + 3].flatten()
            assert torch.equal(patches[2 * y + x], expected)


def test_padding_adds_zeros_below_and_to_the_right():
    embed = fill(PatchEmbed((4, 4), 3, 8))
    images = torch.randn(1, 3, 5, 7)
    padded = torch.zeros(1, 3, 8, 8)
    padded[:, :, :5, :7] = images
    assert torch.equal(embed(images), embed(padded))


@pytest.mark.parametrize("kind", [ConvStem, ResidualStem])
@pytest.mark.parametrize("patch", [2, 4, 16])
def test_a_convolutional_stem_has_the_grid_of_a_patch(kind, patch):
    stem = fill(kind((patch, patch), 3, 32))
    assert stem(torch.randn(2, 3, 33, 50)).shape == (2, math.prod(grid_of((33, 50), (patch, patch))), 32)


def test_a_stage_of_the_residual_stem_by_hand():
    stage = fill(ResidualStem((2, 2), 3, 32).stages[0]).eval()
    images = torch.randn(2, 24, 6, 8)
    pooled = F.gelu(stage.norm1(F.max_pool2d(F.conv2d(images, stage.widen.weight, padding=1), 2)))
    expected = pooled + F.gelu(stage.norm2(F.conv2d(pooled, stage.refine.weight, padding=1)))
    torch.testing.assert_close(stage(images), expected)


def test_whitened_pixels_are_uncorrelated_in_smooth_images():
    torch.manual_seed(0)
    images = F.avg_pool2d(torch.randn(64, 3, 36, 36), 5, stride=1) * 3 + 1
    whiten = Whiten(3)
    kernels = whiten.filters(images).flatten(1)
    torch.testing.assert_close(kernels @ kernels.T, torch.eye(12))
    before = torch.corrcoef(F.unfold(images, 2).transpose(0, 1).flatten(1))
    inner = whiten(images)[:, :, :-1, :-1]
    both = inner[:, :12] - inner[:, 12:]  # GELU(x) − GELU(−x) = x
    after = torch.cov(both.transpose(0, 1).flatten(1))
    torch.testing.assert_close(after.diagonal(), torch.ones(12), atol=0.1, rtol=0)
    off = ~torch.eye(12, dtype=torch.bool)
    assert after[off].abs().mean() < 0.1 * before[off].abs().mean()
    assert not list(whiten.parameters())


@pytest.mark.parametrize("num_channels", [1, 2, 3, 5])
def test_whitening_takes_any_channels_and_images_of_one_pixel(num_channels):
    assert Whiten(num_channels).eval()(torch.randn(2, num_channels, 1, 1)).shape == (2, 8 * num_channels, 1, 1)


def test_a_convolutional_stem_cannot_halve_every_patch():
    with pytest.raises(ValueError, match=r"square patches with a side of 2, 4, 8 … pixels, got \(14, 14\)"):
        ConvStem((14, 14), 3, 32)


@pytest.mark.parametrize("approximate", [False, True])
def test_mlp_equals_timm(approximate):
    theirs = fill(timm.layers.Mlp(16, 64, act_layer=lambda: nn.GELU("tanh" if approximate else "none")))
    ours = Mlp(16, 64, act=partial(nn.GELU, "tanh") if approximate else nn.GELU)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 5, 16)
    assert error(ours(x), theirs(x)) < 1e-6


def test_the_two_gelus_differ():
    exact = fill(Mlp(16, 64))
    tanh = Mlp(16, 64, act=partial(nn.GELU, "tanh"))
    tanh.load_state_dict(exact.state_dict())
    x = torch.randn(100, 16)
    assert 1e-6 < error(tanh(x), exact(x)) < 1e-2


def test_gated_mlp_equals_timm():
    theirs = fill(timm.layers.SwiGLUPacked(16, 64))
    ours = GatedMlp(16, 32)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 5, 16)
    assert error(ours(x), theirs(x)) < 1e-6


def test_layer_scale():
    scale = LayerScale(3, 0.1)
    assert torch.allclose(scale(torch.ones(2, 3)), torch.full((2, 3), 0.1))


def test_drop_path_keeps_the_expectation_and_drops_per_sample():
    drop = DropPath(0.3).train()
    out = drop(torch.ones(20_000, 2, 3))
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert torch.equal(out.amin((1, 2)), out.amax((1, 2)))  # per sample
    x = torch.randn(4, 2)
    assert torch.equal(drop.eval()(x), x)


@many
@given(n=st.integers(1, 30), num_prefix=st.integers(0, 3), rate=st.floats(0, 0.95))
def test_token_drop_keeps_prefix_and_order(n, num_prefix, rate):
    x = torch.arange(float(num_prefix + n))[None, :, None].expand(4, -1, 2).contiguous()
    out = TokenDrop(rate).train()(x, num_prefix)
    assert out.shape[1] == (num_prefix + max(1, round(n * (1 - rate))) if rate else num_prefix + n)
    assert torch.equal(out[:, :num_prefix], x[:, :num_prefix])
    assert (out[:, 1:, 0] > out[:, :-1, 0]).all()  # still in raster order, without repetition


def test_token_drop_chooses_for_every_sample_anew():
    x = torch.arange(64.0)[None, :, None].expand(8, -1, 1).contiguous()
    out = TokenDrop(0.5).train()(x)
    assert len({tuple(row.flatten().tolist()) for row in out}) == 8
    assert torch.equal(TokenDrop(0.5).eval()(x), x)


@pytest.mark.parametrize("make", [DropPath, TokenDrop])
def test_rates_are_checked(make):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\), got 1"):
        make(1.0)


@pytest.mark.parametrize(("kind", "norm_first"), [(PreNormBlock, True), (PostNormBlock, False)])
def test_blocks_equal_torch(kind, norm_first):
    ours = fill(kind(32, SelfAttention(CONTEXT), Mlp(32, 64), norm_eps=1e-5))
    theirs = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=norm_first).eval()
    names = {
        "norm1": "norm1",
        "norm2": "norm2",
        "mlp.fc1": "linear1",
        "mlp.fc2": "linear2",
        "mixer.proj": "self_attn.out_proj",
        "mixer.qkv": "self_attn.in_proj",
    }
    state = {}
    for name, tensor in ours.state_dict().items():
        part, kind_of = name.rsplit(".", 1)
        state[f"{names[part]}_{kind_of}" if "in_proj" in names[part] else f"{names[part]}.{kind_of}"] = tensor
    theirs.load_state_dict(state)
    x = torch.randn(2, 7, 32, requires_grad=True)  # gradients disable PyTorch's fused path
    assert error(ours(x, None), theirs(x)) < 1e-5


def test_layer_scale_of_zero_makes_a_pre_norm_block_the_identity():
    block = PreNormBlock(32, SelfAttention(CONTEXT), Mlp(32, 64), layer_scale=0.0)
    x = torch.randn(2, 7, 32)
    assert torch.equal(block(x, None), x)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_norm_eps_is_configuration(eps):
    block = PreNormBlock(32, SelfAttention(CONTEXT), Mlp(32, 64), norm_eps=eps)
    x = 0.01 * torch.randn(2, 32)
    variance = x.var(-1, unbiased=False, keepdim=True)
    expected = (x - x.mean(-1, keepdim=True)) / (variance + eps).sqrt()
    assert error(block.norm1(x), expected) < 1e-5


def test_init_of_convolutions():
    conv = nn.Conv2d(3, 512, 16)
    init_vit(conv)
    assert conv.weight.std().item() == pytest.approx((3 * 256) ** -0.5, rel=0.02)
