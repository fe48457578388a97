"""A depthwise convolution over the grid equals the loop over cells and neighbors."""

from itertools import product

import pytest
import torch

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.depthwise import Depthwise
from vitreous.layers.mixer import MixerContext

DIM = 6
WITHOUT_PREFIX = {"class_token": False, "pool": "mean"}


def build(**options):
    return fill(Depthwise(**options).build(MixerContext(dim=DIM, num_heads=1, grid=(4, 4)))).double()


def naive(mixer, tokens, grid):
    """One image (n, d), cell by cell: depthwise convolution as a loop."""
    weight, half = mixer.conv.weight[:, 0], mixer.conv.weight.shape[-1] // 2
    rows = []
    for y, x in product(range(grid[0]), range(grid[1])):
        total = mixer.conv.bias.clone()
        for dy, dx in product(range(-half, half + 1), repeat=2):
            if 0 <= y + dy < grid[0] and 0 <= x + dx < grid[1]:
                total += weight[:, half + dy, half + dx] * tokens[(y + dy) * grid[1] + x + dx]
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (8, 8), (7, 10)])
@torch.no_grad()
def test_equals_the_loop(grid, kernel):
    mixer, tokens = build(kernel=kernel), torch.randn(2, grid[0] * grid[1], DIM).double()
    expected = torch.stack([naive(mixer, image, grid) for image in tokens])
    assert error(mixer(tokens, grid), expected) < 1e-10


@torch.no_grad()
def test_one_image_does_not_depend_on_its_batch():
    mixer, tokens = build(), torch.randn(3, 57 * 78, DIM).double()
    together = mixer(tokens, (57, 78))
    tokens[1:] *= 100
    assert error(mixer(tokens, (57, 78))[:1], together[:1]) < 1e-10


def test_in_a_vit():
    model = vt.create_model("vit_tiny_16", mixer=Depthwise(kernel=3), depth=2, image_size=64, **WITHOUT_PREFIX)
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in model.blocks[1].mixer.parameters())
    assert model.config.mixer.to_json() == {"mixer": "depthwise", "kernel": 3}
    assert vt.create_model("vit_tiny_16", mixer="depthwise", **WITHOUT_PREFIX).config.mixer.kernel == 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Depthwise(kernel=4), "kernel must be odd, to be centered on a cell; got 4, choose 5"),
        (lambda: Depthwise(kernel=0), "kernel must be at least 1, got 0"),
        (lambda: vt.create_model("vit_tiny_16", mixer="depthwise"), "does not support prefix tokens .they have no"),
        (
            lambda: vt.create_model("vit_tiny_16", mixer="depthwise", token_drop_rate=0.5, **WITHOUT_PREFIX),
            "does not support token_drop_rate",
        ),
        (
            lambda: vt.create_model("vit_tiny_16", mixer="depthwise", position="rope", **WITHOUT_PREFIX),
            "does not support position='rope'",
        ),
        (lambda: build()(torch.zeros(1, 4, DIM).double(), None), "need the whole grid"),
    ],
)
def test_unsupported_contexts_raise(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
