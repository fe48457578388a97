"""Separable convolution and StarReLU equal a loop and timm."""

import itertools

import pytest
import timm.models.metaformer
import torch

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mlp import StarReLU
from vitreous.layers.separable import Separable, SeparableConv

GRIDS = [(1, 1), (3, 5), (8, 6), (7, 10)]


def make(kernel=3, dim=4, hidden_dim=6):
    context = MixerContext(dim=dim, num_heads=1, grid=(2, 2))
    return fill(SeparableConv(context, kernel, hidden_dim=hidden_dim)).double()


def naive(mixer, x, grid):
    """One image, cell by cell: depthwise convolution between two linear layers."""
    scale, bias, filters = mixer.act.scale, mixer.act.bias, mixer.depthwise.weight[:, 0]
    half = filters.shape[-1] // 2
    wide = [scale * torch.clamp(mixer.expand.weight @ cell, min=0) ** 2 + bias for cell in x]
    out = []
    for row, column in itertools.product(range(grid[0]), range(grid[1])):
        total = torch.zeros_like(wide[0])
        for y, z in itertools.product(range(grid[0]), range(grid[1])):
            if abs(y - row) <= half and abs(z - column) <= half:
                total += filters[:, y - row + half, z - column + half] * wide[y * grid[1] + z]
        out.append(mixer.project.weight @ total)
    return torch.stack(out)


@pytest.mark.parametrize("kernel", [3, 7])
@pytest.mark.parametrize("grid", GRIDS)
@torch.no_grad()
def test_equals_the_loop(grid, kernel):
    mixer, x = make(kernel), torch.randn(2, grid[0] * grid[1], 4).double()
    expected = torch.stack([naive(mixer, image, grid) for image in x])
    assert error(mixer(x, grid), expected) < 1e-12


@torch.no_grad()
def test_equals_timm():
    theirs, ours = fill(timm.models.metaformer.SepConv(8)), make(kernel=7, dim=8, hidden_dim=16).float()
    names = {"pwconv1": "expand", "act1": "act", "dwconv": "depthwise", "pwconv2": "project"}
    state = {f"{names[name.split('.')[0]]}.{name.split('.')[1]}": part for name, part in theirs.state_dict().items()}
    ours.load_state_dict({name: part.flatten(1) if part.shape[2:] == (1, 1) else part for name, part in state.items()})
    x = torch.randn(2, 8, 5, 9)
    assert error(ours(x.flatten(2).mT, (5, 9)), theirs(x).flatten(2).mT) < 1e-5


@torch.no_grad()
def test_images_stay_apart():
    mixer, x = make(), torch.randn(3, 35, 4).double()
    assert error(mixer(x[1:2], (5, 7)), mixer(x, (5, 7))[1:2]) < 1e-12


def test_the_activation_starts_as_a_squared_relu_and_learns_two_numbers():
    act, x = StarReLU(), torch.linspace(-2, 2, 9)
    assert torch.equal(act(x), x.clamp(min=0) ** 2)
    act(x).sum().backward()
    assert (act.scale.grad.item(), act.bias.grad.item()) == ((x.clamp(min=0) ** 2).sum().item(), 9)


def test_in_a_vit():
    options = {"depth": 2, "image_size": 64, "class_token": False, "pool": "mean"}
    model = vt.create_model("vit_tiny_16", mixer={"mixer": "separable", "expand_ratio": 0.5}, **options)
    assert model.blocks[0].mixer.depthwise.weight.shape == (96, 1, 7, 7)
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Separable(kernel=4), "kernel must be odd, to be centered on a cell; got 4, choose 5"),
        (lambda: vt.create_model("vit_tiny_16", mixer="separable"), "does not support prefix tokens .they have no"),
        (
            lambda: Separable().build(MixerContext(dim=8, num_heads=1, grid=(2, 2), drops_tokens=True)),
            "does not support token_drop_rate",
        ),
        (lambda: make()(torch.randn(1, 4, 4).double(), None), "need the whole grid"),
    ],
)
def test_unsupported_contexts_raise(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
