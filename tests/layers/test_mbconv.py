"""MBConv and its parts against their formulas."""

import itertools

import pytest
import torch

from tests.parity import error, fill
from vitreous.layers.init import init_efficient
from vitreous.layers.mbconv import MBConv, MBConvOptions, SqueezeExcite, mean_pool_2x2

GRIDS = [(1, 1), (3, 5), (8, 6), (7, 10)]


@pytest.mark.parametrize("grid", GRIDS)
def test_average_pooling_excludes_padding(grid):
    x = torch.randn(2, 3, *grid)
    means = mean_pool_2x2()(x)
    assert means.shape[2:] == (-(-grid[0] // 2), -(-grid[1] // 2))
    for row, column in itertools.product(range(means.shape[2]), range(means.shape[3])):
        cells = x[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert torch.allclose(means[:, :, row, column], cells.mean((2, 3)), atol=1e-6)


@torch.no_grad()
def test_squeeze_excite_gates_channels_by_their_means():
    module, x = fill(SqueezeExcite(4, 2, act="relu")), torch.randn(2, 4, 3, 5)
    weighed = module(x)
    for image, out in zip(x, weighed, strict=True):
        means = [channel.mean() for channel in image]
        inner = [
            max(torch.tensor(0.0), sum(w * m for w, m in zip(row.flatten(), means, strict=True)) + b)
            for row, b in zip(module.fc1.weight, module.fc1.bias, strict=True)
        ]
        for channel, (row, b) in enumerate(zip(module.fc2.weight, module.fc2.bias, strict=True)):
            gate = torch.sigmoid(sum(w * i for w, i in zip(row.flatten(), inner, strict=True)) + b)
            assert error(out[channel], image[channel] * gate) < 1e-5


@torch.no_grad()
def test_the_depthwise_convolution_sees_one_channel_and_its_neighbors():
    """Without squeeze-and-excitation, which is global, the receptive field is 3×3."""
    block = fill(MBConv(4, 4, options=MBConvOptions()))
    block.branch.squeeze = torch.nn.Identity()
    x = torch.randn(1, 4, 7, 10)
    moved = x.clone()
    moved[0, :, 3, 4] += 1
    changed = (block(moved) - block(x)).abs().amax((0, 1)) > 0
    assert changed.nonzero().tolist() == [[y, z] for y in (2, 3, 4) for z in (3, 4, 5)]


OPTIONS = [
    MBConvOptions(),
    MBConvOptions(expand_from="input", squeeze_ratio=1 / 4, act="silu", halve="pool"),
    MBConvOptions(act_first=True, squeeze_ratio=1 / 4, squeeze_first=True, squeeze_act="relu", bias=False),
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("grid", GRIDS)
def test_any_grid_and_every_parameter_learns(options, grid):
    block = fill(MBConv(8, 12, options=options, stride=2))
    x = torch.randn(4, 8, *grid, requires_grad=True)
    out = block(x)
    assert out.shape == (4, 12, -(-grid[0] // 2), -(-grid[1] // 2))
    out.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.abs().max() > 0 for p in block.parameters())


def test_widths():
    wide, narrow = (MBConv(8, 16, options=MBConvOptions(expand_from=side), stride=2) for side in ("output", "input"))
    assert (wide.branch.expand.out_channels, narrow.branch.expand.out_channels) == (64, 32)
    assert wide.branch.squeeze.fc1.out_channels == 4
    assert wide.branch.depthwise.groups == 64


def test_the_shortcut_is_the_input_itself():
    block, x = MBConv(8, 8, options=MBConvOptions()).eval(), torch.randn(1, 8, 5, 5)
    torch.nn.init.zeros_(block.branch.project.weight)
    torch.nn.init.zeros_(block.branch.project.bias)
    assert torch.equal(block(x), x)


def test_start():
    block = MBConv(256, 256, options=MBConvOptions()).apply(init_efficient)
    assert block.branch.depthwise.weight.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.05)
    assert block.branch.expand.weight.std().item() == pytest.approx((2 / 1024) ** 0.5, rel=0.05)
    assert not block.branch.project.bias.any()


def test_a_block_that_keeps_the_map_keeps_its_width():
    with pytest.raises(ValueError, match="a block with stride 1 must keep its width, got 8 → 16"):
        MBConv(8, 16, options=MBConvOptions())
    assert not list(MBConv(8, 8, options=MBConvOptions(), stride=2).shortcut.parameters())
