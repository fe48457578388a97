"""Performer equals a loop over its own features, approximates softmax attention, and survives half precision."""

import math

import pytest
import torch

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.attention import Attend
from vitreous.layers.mixer import MixerContext
from vitreous.layers.performer import LinearAttend, Performer, PositiveFeatures, orthogonal_normal

GRIDS = [(1, 1), (3, 5), (4, 8), (7, 10)]


def made(num_features=6, dim=12, num_heads=3, **options):
    context = MixerContext(dim=dim, num_heads=num_heads, grid=(4, 4), **options)
    return fill(Performer(num_features=num_features).build(context))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def phi(x, directions):
    """One feature at a time."""
    r, k = directions.shape
    x = [value / k**0.25 for value in x.tolist()]
    length = sum(value**2 for value in x)
    return [
        math.exp(sum(a * b for a, b in zip(x, w, strict=True)) - length / 2) / math.sqrt(r) for w in directions.tolist()
    ]


def naive_head(q, k, v, directions):
    """One query and one key at a time."""
    queries, keys = ([phi(x, directions) for x in part] for part in (q, k))
    out = torch.zeros_like(v)
    for i, query in enumerate(queries):
        shares = [sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
        for j, share in enumerate(shares):
            out[i] += share / sum(shares) * v[j]
    return out


def naive(mixer, x):
    images = []
    for tokens in x:
        parts = (part.chunk(mixer.num_heads, dim=1) for part in mixer.qkv(tokens).chunk(3, dim=1))
        heads = [naive_head(*head, mixer.features.directions) for head in zip(*parts, strict=True)]
        images.append(mixer.proj(torch.cat(heads, dim=1)))
    return torch.stack(images)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("num_prefix", [0, 2])
@torch.no_grad()
def test_equals_the_loop(grid, num_prefix):
    mixer, x = made(), torch.randn(2, num_prefix + grid[0] * grid[1], 12)
    assert error(mixer(x, grid, num_prefix), naive(mixer, x)) < 1e-5


def attention(q, k, v, features):
    return LinearAttend()(features(q), features(k), v)


def mean_error(num_features, scale, trials=30):
    """Against softmax attention, over draws of the features."""
    q, k, v = torch.randn(3, 24, 16, generator=seeded(0)) * torch.tensor([scale, scale, 1.0])[:, None, None]
    exact, features = Attend().weights(q, k) @ v, PositiveFeatures(16, num_features)
    errors = []
    for trial in range(trials):
        features.redraw(seeded(trial))
        errors.append((attention(q, k, v, features) - exact).square().mean().sqrt().item())
    return sum(errors) / trials


def test_the_error_falls_with_the_root_of_the_number_of_features():
    errors = [mean_error(r, scale=0.25) for r in (16, 64, 256)]
    for more, fewer in zip(errors[1:], errors[:-1], strict=True):
        assert fewer / more == pytest.approx(2, rel=0.15)


def test_variance_grows_with_the_norms():
    """The variance of φ(q)·φ(k) grows exponentially with the norms: more features hardly help."""
    errors = [mean_error(r, scale=3.0, trials=10) for r in (16, 256)]
    assert errors[0] / errors[1] < 1.2
    assert errors[1] > 0.5


def test_the_kernel_is_unbiased():
    q, k = 0.7 * torch.randn(2, 16, generator=seeded(1))
    features = PositiveFeatures(16, 16 * 4000)
    features.redraw(seeded(2))
    products = features(q[None]).exp() @ features(k[None]).exp().T
    assert products.item() == pytest.approx(math.exp(q @ k / 4), rel=0.02)


def test_features_are_positive():
    assert (PositiveFeatures(8, 32)(torch.randn(3, 50, 8)).exp() > 0).all()


def test_directions_are_orthogonal_in_blocks_and_as_long_as_normal_vectors():
    rows = orthogonal_normal(40, 16, seeded(0))
    assert rows.shape == (40, 16)
    for block in rows.split(16):
        products = block @ block.T
        assert torch.allclose(products, products.diag().diag(), atol=1e-4)
    many = orthogonal_normal(16 * 500, 16, seeded(0))
    assert many.square().sum(1).mean().item() == pytest.approx(16, rel=0.02)
    assert many.square().sum(1).std().item() == pytest.approx(math.sqrt(32), rel=0.05)
    assert many.mean(0).abs().max() < 0.05  # a plain QR would fix the sign of some coordinate within a block


def test_redraw_follows_the_generator():
    features = PositiveFeatures(8, 20)
    first = features.directions.clone()
    features.redraw(seeded(3))
    second = features.directions.clone()
    assert not torch.equal(first, second)
    features.redraw(seeded(4))
    assert not torch.equal(features.directions, second)
    features.redraw(seeded(3))
    assert torch.equal(features.directions, second)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_half_precision_is_safe_with_large_inputs(scale):
    q, k, v = (scale * torch.randn(3, 2, 40, 16)).half()
    out = attention(q, k, v, PositiveFeatures(16, 32).half())
    assert out.dtype == torch.float16
    assert out.isfinite().all()
    assert out.abs().max() <= v.abs().max() * 1.01  # weighted means of the values


def test_gradients_are_finite_with_large_inputs():
    mixer, x = made(), (100 * torch.randn(1, 15, 12)).requires_grad_()
    mixer(x, (3, 5)).square().sum().backward()
    assert x.grad.isfinite().all()


@torch.no_grad()
def test_one_image_does_not_depend_on_its_batch():
    mixer, x = made(), torch.randn(3, 15, 12)
    together = mixer(x, (3, 5))
    x[1:] *= 100
    assert error(mixer(x, (3, 5))[:1], together[:1]) < 1e-5
    assert error(mixer(x[:1], (3, 5)), together[:1]) < 1e-5


def vit(**options):
    return vt.create_model("vit_tiny_16", mixer="performer", depth=2, image_size=64, num_classes=7, **options)


def test_anywhere_in_a_vit():
    model = fill(vit())
    model(torch.randn(2, 3, 64, 80)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_a_file_keeps_the_features(tmp_path):
    model, images = vit().eval(), torch.randn(2, 3, 64, 64)
    vt.save(model, tmp_path / "model.safetensors")
    again = vt.load(tmp_path / "model.safetensors").eval()
    assert torch.equal(again.blocks[1].mixer.features.directions, model.blocks[1].mixer.features.directions)
    assert torch.equal(again(images), model(images))


def test_layers_draw_different_features_reproducibly():
    directions = [layer.mixer.features.directions for _ in range(2) for layer in drawn().blocks]
    assert not torch.equal(directions[0], directions[1])
    assert torch.equal(directions[0], directions[2])


def drawn():
    torch.manual_seed(5)
    return vit()


def test_dropped_tokens():
    assert vit(token_drop_rate=0.5).train()(torch.randn(2, 3, 64, 64)).isfinite().all()


def test_fewer_macs_only_with_more_than_twice_as_many_tokens_as_features():
    def macs(grid, mixer):
        size = (16 * grid[0], 16 * grid[1])
        options = {"mixer": mixer, "class_token": False, "pool": "mean", "depth": 1}
        return vt.cost("vit_tiny_16", size, **options).parts["mixer"].macs

    performer = Performer(num_features=64)
    assert macs((8, 16), performer) == macs((8, 16), "attention")
    assert macs((8, 15), performer) > macs((8, 15), "attention")
    assert macs((8, 17), performer) < macs((8, 17), "attention")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "relative"}, "'performer' does not support position='relative'"),
        ({"position": "rope"}, "'performer' does not support position='rope'"),
        ({"attention_drop_rate": 0.1}, "'performer' does not support attention_drop_rate"),
        ({"num_heads": 5}, "dim must be a multiple of num_heads"),
    ],
)
def test_unsupported_contexts_raise(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        Performer().build(MixerContext(**({"dim": 12, "num_heads": 3, "grid": (3, 5)} | options)))
    assert "\n" not in str(caught.value)


def test_some_features_are_needed():
    with pytest.raises(ValueError, match="num_features must be at least 1, got 0"):
        Performer(num_features=0)
