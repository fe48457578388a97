"""Cross-covariance attention equals a loop over channels, is permutation-equivariant, and is linear in cost."""

import math

import pytest
import torch

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.covariance import Covariance, CrossCovariance
from vitreous.layers.layout import Channels
from vitreous.layers.mixer import MixerContext

GRIDS = [(1, 1), (3, 5), (4, 8), (7, 10)]


def made(dim=12, num_heads=3, **options):
    """Random weights, with temperatures large enough for the attention weights to differ."""
    mixer = fill(CrossCovariance(MixerContext(dim=dim, num_heads=num_heads, grid=(3, 5), **options)))
    with torch.no_grad():
        mixer.temperature.copy_(torch.linspace(3, 12, num_heads)[:, None, None])
    return mixer


def length(channel):
    return math.sqrt(sum(float(value) ** 2 for value in channel))


def naive_head(q, k, v, temperature):
    """One query channel and one key channel at a time; all are (tokens, channels of the head)."""
    out = torch.zeros_like(v)
    for i in range(q.shape[1]):
        shares = []
        for j in range(k.shape[1]):
            cosine = float(q[:, i] @ k[:, j]) / (length(q[:, i]) * length(k[:, j]))
            shares.append(math.exp(temperature * cosine))
        for j, share in enumerate(shares):
            out[:, i] += share / sum(shares) * v[:, j]
    return out


def naive(mixer, x):
    images = []
    for tokens in x:
        q, k, v = mixer.qkv(tokens).chunk(3, dim=1)
        heads = zip(*(part.chunk(mixer.num_heads, dim=1) for part in (q, k, v)), mixer.temperature, strict=True)
        images.append(mixer.proj(torch.cat([naive_head(q, k, v, float(t)) for q, k, v, t in heads], dim=1)))
    return torch.stack(images)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("num_prefix", [0, 2])
@torch.no_grad()
def test_equals_the_loop(grid, num_prefix):
    mixer, x = made(), torch.randn(2, num_prefix + grid[0] * grid[1], 12)
    assert error(mixer(x, grid, num_prefix), naive(mixer, x)) < 1e-5


@torch.no_grad()
def test_the_temperature_is_seen():
    mixer, x = made(), torch.randn(1, 15, 12)
    before = mixer(x, (3, 5))
    mixer.temperature[1] *= 1.5
    assert error(mixer(x, (3, 5)), before) > 1e-2


@torch.no_grad()
def test_tokens_have_no_order():
    mixer, x, order = made(), torch.randn(1, 15, 12), torch.randperm(15)
    assert error(mixer(x[:, order], (3, 5)), mixer(x, (3, 5))[:, order]) < 1e-5


@torch.no_grad()
def test_one_image_does_not_depend_on_its_batch():
    mixer, x = made(), torch.randn(3, 15, 12)
    together = mixer(x, (3, 5))
    x[1:] *= 100
    assert error(mixer(x, (3, 5))[:1], together[:1]) < 1e-6
    assert error(mixer(x[:1], (3, 5)), together[:1]) < 1e-6


def test_cost_grows_with_the_number_of_tokens():
    small, large = (vt.cost("vit_tiny_16", size, mixer="covariance") for size in (256, 1024))
    assert large.parts["mixer"].macs / small.parts["mixer"].macs == large.num_tokens / small.num_tokens
    dim, head_dim = 192, 64
    assert small.parts["mixer"].macs == 12 * small.num_tokens * (4 * dim**2 + 2 * dim * head_dim)
    full = [vt.cost("vit_tiny_16", size) for size in (256, 1024)]
    assert full[1].parts["mixer"].macs / full[0].parts["mixer"].macs > 2 * large.num_tokens / small.num_tokens


def test_anywhere_in_a_vit():
    model = fill(vt.create_model("vit_tiny_16", mixer="covariance", depth=2, image_size=64, num_classes=7))
    model(torch.randn(2, 3, 64, 80)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    assert model.config.to_json()["mixer"] == {"mixer": "covariance"}


def test_what_is_recorded_are_channels():
    model, images = made_vit(), torch.randn(2, 3, 64, 80)
    with torch.no_grad(), vt.record(model) as trace:
        recorded = model(images)
        weights = trace["blocks.1"].weights
        assert weights.shape == (2, 3, 64, 64)
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        assert isinstance(trace["blocks.1"].layout, Channels)
    assert error(recorded, model(images)) < 1e-5


def made_vit(**options):
    return fill(vt.create_model("vit_tiny_16", mixer=Covariance(), depth=2, image_size=64, num_classes=7, **options))


def test_dropped_tokens():
    model = made_vit(token_drop_rate=0.5).train()
    assert model(torch.randn(2, 3, 64, 64)).isfinite().all()


def test_dropout_in_training_only():
    mixer, x = made(attention_drop_rate=0.5), torch.randn(1, 15, 12)
    assert torch.equal(mixer(x, (3, 5)), mixer(x, (3, 5)))
    mixer.train()
    assert not torch.equal(mixer(x, (3, 5)), mixer(x, (3, 5)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "relative"}, "mixer 'covariance' does not support position='relative'"),
        ({"position": "rope"}, r"position='rope' \(it does not rotate queries and keys\); choose 'learned'"),
        ({"num_heads": 5}, "dim must be a multiple of num_heads, got dim=12, num_heads=5"),
    ],
)
def test_unsupported_contexts_raise(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        Covariance().build(MixerContext(**({"dim": 12, "num_heads": 3, "grid": (3, 5)} | options)))
    assert "\n" not in str(caught.value)
