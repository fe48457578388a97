"""Pooling equals a loop over cells, and raises in unsupported contexts."""

import itertools

import pytest
import torch

import vitreous as vt
from tests.parity import error
from vitreous.layers.mixer import MixerContext
from vitreous.layers.pooling import Pool, Pooling

GRIDS = [(1, 1), (3, 5), (6, 6), (7, 10)]


def naive(x, grid, size):
    """One image, cell by cell: the mean of the neighborhood minus the cell."""
    cells, out = x.reshape(*grid, -1), torch.empty_like(x).reshape(*grid, -1)
    for row, column in itertools.product(range(grid[0]), range(grid[1])):
        around = [
            cells[y, z]
            for y in range(row - size // 2, row + size // 2 + 1)
            for z in range(column - size // 2, column + size // 2 + 1)
            if 0 <= y < grid[0] and 0 <= z < grid[1]
        ]
        out[row, column] = sum(around) / len(around) - cells[row, column]
    return out.reshape(x.shape)


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("grid", GRIDS)
def test_equals_the_loop(grid, size):
    x = torch.randn(2, grid[0] * grid[1], 4).double()
    expected = torch.stack([naive(image, grid, size) for image in x])
    assert (Pooling(size)(x, grid) - expected).abs().max() < 1e-12


def test_constant_maps_become_zero():
    """A bias before the pooling has no effect."""
    mixer, x = Pooling(3), torch.randn(1, 35, 8).double()
    assert error(mixer(x + torch.randn(8).double(), (5, 7)), mixer(x, (5, 7))) < 1e-12


def test_images_stay_apart():
    mixer, x = Pooling(3), torch.randn(3, 35, 8)
    assert torch.equal(mixer(x, (5, 7))[1:2], mixer(x[1:2], (5, 7)))


def test_in_a_vit():
    options = {"depth": 2, "image_size": 64, "class_token": False, "pool": "mean"}
    model = vt.create_model("vit_tiny_16", mixer={"mixer": "pool", "size": 5}, **options)
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert not list(model.blocks[0].mixer.parameters())
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Pool(size=4), "size must be odd, to be centered on a cell; got 4, choose 5"),
        (lambda: vt.create_model("vit_tiny_16", mixer="pool"), "does not support prefix tokens .they have no neigh"),
        (
            lambda: Pool().build(MixerContext(dim=8, num_heads=1, grid=(2, 2), drops_tokens=True)),
            "does not support token_drop_rate",
        ),
        (lambda: Pooling(3)(torch.randn(1, 4, 8), None), "need the whole grid"),
    ],
)
def test_unsupported_contexts_raise(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
