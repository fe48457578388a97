"""Convolutional projections equal a loop over cells, kernels and queries."""

import math

import pytest
import torch

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.conv_projection import ConvProjectedAttention, ConvProjection
from vitreous.layers.mixer import MixerContext

GRIDS = [(1, 1), (3, 5), (4, 6), (7, 10)]


def make(dim=8, num_heads=2, **options):
    context = MixerContext(dim=dim, num_heads=num_heads, grid=(4, 6))
    return fill(ConvProjectedAttention(context, **options)).double()


def naive_projection(projection, prefix, cells, stride):
    """Cell by cell: depthwise convolution, normalization, linear projection."""
    rows, columns, half = len(cells), len(cells[0]), projection.conv.weight.shape[-1] // 2
    norm, linear, tokens = projection.norm, projection.linear, list(prefix)
    for y in range(0, rows, stride):
        for x in range(0, columns, stride):
            total = torch.zeros_like(cells[0][0])
            for dy in range(-half, half + 1):
                for dx in range(-half, half + 1):
                    if 0 <= y + dy < rows and 0 <= x + dx < columns:
                        total += projection.conv.weight[:, 0, dy + half, dx + half] * cells[y + dy][x + dx]
            tokens.append((total - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias)
    return [linear.weight @ token + linear.bias for token in tokens]


def naive(mixer, x, grid, num_prefix):
    """One image, one head, one query at a time."""
    prefix, flat = x[:num_prefix], x[num_prefix:]
    cells = [[flat[row * grid[1] + column] for column in range(grid[1])] for row in range(grid[0])]
    q = naive_projection(mixer.q, prefix, cells, 1)
    k, v = (naive_projection(part, prefix, cells, mixer.kv_stride) for part in (mixer.k, mixer.v))
    out = torch.zeros_like(x)
    width = x.shape[1] // mixer.num_heads
    for head in (slice(start, start + width) for start in range(0, x.shape[1], width)):
        for place, query in enumerate(q):
            shares = [math.exp(float(query[head] @ key[head]) / math.sqrt(x.shape[1])) for key in k]
            for share, value in zip(shares, v, strict=True):
                out[place, head] += share / sum(shares) * value[head]
    return out @ mixer.proj.weight.T + mixer.proj.bias


@pytest.mark.parametrize("num_prefix", [0, 2])
@pytest.mark.parametrize("grid", GRIDS)
@torch.no_grad()
def test_equals_the_loop(grid, num_prefix):
    mixer = make()
    x = torch.randn(2, num_prefix + grid[0] * grid[1], 8).double()
    expected = torch.stack([naive(mixer, image, grid, num_prefix) for image in x])
    assert error(mixer(x, grid, num_prefix), expected) < 1e-10


@pytest.mark.parametrize("options", [{"kernel": 5, "kv_stride": 3}, {"kernel": 1, "kv_stride": 1}, {"kv_stride": 4}])
@torch.no_grad()
def test_other_kernels_and_strides_equal_the_loop(options):
    mixer, x = make(**options), torch.randn(1, 1 + 3 * 5, 8).double()
    assert error(mixer(x, (3, 5), 1), naive(mixer, x[0], (3, 5), 1)[None]) < 1e-10


@torch.no_grad()
def test_every_part_matters():
    """Sensitivity check: changing any parameter or statistic changes the output, except the bias of keys."""
    mixer, x = make(), torch.randn(1, 1 + 4 * 6, 8).double()
    before = mixer(x, (4, 6), 1)
    for name, tensor in mixer.state_dict().items():
        if not tensor.is_floating_point() or name == "k.linear.bias":
            continue
        saved = tensor.clone()
        tensor.add_(torch.rand_like(tensor))
        assert error(mixer(x, (4, 6), 1), before) > 1e-3, name
        tensor.copy_(saved)
    assert torch.equal(mixer(x, (4, 6), 1), before)


@torch.no_grad()
def test_one_image_does_not_depend_on_its_batch():
    mixer, x = make(), torch.randn(3, 1 + 57 * 78, 8).double()
    together = mixer(x, (57, 78), 1)
    x[1:] *= 100
    assert error(mixer(x, (57, 78), 1)[:1], together[:1]) < 1e-10


def test_recorded_keys_are_on_a_coarser_grid():
    model = vt.create_model("vit_tiny_16", mixer="conv_projection", depth=2, image_size=(80, 112)).eval()
    with vt.record(model) as trace, torch.no_grad():
        model(torch.randn(1, 3, 80, 112))
    attention = trace["blocks.1"]
    assert (attention.query_grid, attention.key_grid, attention.num_prefix) == ((5, 7), (3, 4), 1)
    assert attention.weights.shape == (1, 3, 1 + 5 * 7, 1 + 3 * 4)


def test_in_a_vit():
    model = vt.create_model("vit_tiny_16", mixer=ConvProjection(kv_stride=1), depth=2, image_size=64)
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert model.blocks[1].mixer.k.conv.weight.grad.abs().max() > 0
    assert model.config.mixer.to_json() == {"mixer": "conv_projection", "kernel": 3, "kv_stride": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConvProjection(kernel=4), "kernel must be odd, to be centered on a cell; got 4, choose 5"),
        (lambda: ConvProjection(kv_stride=0), "kv_stride must be at least 1, got 0"),
        (
            lambda: vt.create_model("vit_tiny_16", mixer="conv_projection", position="rope"),
            "does not support position",
        ),
        (
            lambda: vt.create_model("vit_tiny_16", mixer="conv_projection", token_drop_rate=0.5),
            "does not support token_drop_rate",
        ),
        (lambda: ConvProjection().build(MixerContext(dim=8, num_heads=3, grid=(4, 4))), "multiple of num_heads"),
        (lambda: make()(torch.zeros(1, 4, 8).double(), None), "need the whole grid"),
    ],
)
def test_unsupported_contexts_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
