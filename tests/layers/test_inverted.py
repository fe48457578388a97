"""The inverted residual equals a loop over cells, and has a shortcut only where shapes match."""

import itertools

import pytest
import torch

from tests.parity import error, fill
from vitreous.layers.inverted import InvertedResidual, conv_norm

GRIDS = [(1, 1), (3, 5), (8, 6), (7, 10)]


def normalized(x, norm):
    """Normalize one cell's channels by the running statistics."""
    return (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias


def silu(x):
    return x * x.sigmoid()


def naive(block, image, stride):
    """Cell by cell: expand, 3×3 depthwise convolution with zero padding, project."""
    height, width = image.shape[1:]
    cells = list(itertools.product(range(height), range(width)))
    expand, depthwise, project = (part.conv.weight for part in (block.expand, block.depthwise, block.project))
    wide = {cell: silu(normalized(expand[:, :, 0, 0] @ image[:, *cell], block.expand.norm)) for cell in cells}
    out = {}
    for y, x in itertools.product(range(0, height, stride), range(0, width, stride)):
        near = [(y + down, x + across) for down, across in itertools.product((-1, 0, 1), repeat=2)]
        seen = sum(depthwise[:, 0, a - y + 1, b - x + 1] * wide[a, b] for a, b in near if (a, b) in wide)
        seen = silu(normalized(seen, block.depthwise.norm))
        out[y // stride, x // stride] = normalized(project[:, :, 0, 0] @ seen, block.project.norm)
    rows, columns = -(-height // stride), -(-width // stride)
    result = torch.stack([out[cell] for cell in itertools.product(range(rows), range(columns))], dim=-1)
    result = result.reshape(-1, rows, columns)
    return image + result if stride == 1 and result.shape == image.shape else result


@torch.no_grad()
@pytest.mark.parametrize(("dim_out", "stride"), [(4, 1), (6, 1), (4, 2), (6, 2)])
@pytest.mark.parametrize("grid", GRIDS)
def test_naive(grid, dim_out, stride):
    block = fill(InvertedResidual(4, dim_out, stride=stride, expand_ratio=2.0))
    images = torch.randn(2, 4, *grid)
    expected = torch.stack([naive(block, image, stride) for image in images])
    assert error(block(images), expected) < 1e-5


@pytest.mark.parametrize("stride", [1, 2])
def test_every_parameter_learns(stride):
    block = fill(InvertedResidual(4, 4, stride=stride, act="relu"))
    block(torch.randn(2, 4, 7, 10)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in block.parameters())


@torch.no_grad()
def test_only_a_branch_with_a_shortcut_is_dropped():
    x = torch.randn(16, 4, 3, 5)
    block = fill(InvertedResidual(4, 4, drop_path_rate=0.5))
    branch = block(x) - x
    block.drop_path.train()
    torch.manual_seed(0)
    out = block(x)
    kept = (out != x).flatten(1).any(1)
    assert 0 < kept.sum() < len(x)
    assert error(out[kept], (x + 2 * branch)[kept]) < 1e-5
    halving = fill(InvertedResidual(4, 4, stride=2, drop_path_rate=0.5))
    expected = halving(x)
    halving.drop_path.train()
    assert torch.equal(halving(x), expected)


def test_parts_and_widths():
    block = InvertedResidual(8, 12, stride=2, expand_ratio=3.0)
    assert block.expand.conv.out_channels == block.depthwise.conv.groups == block.project.conv.in_channels == 24
    assert [name for name, _ in block.project.named_children()] == ["conv", "norm"]
    assert [name for name, _ in conv_norm(3, 4, 3).named_children()] == ["conv", "norm", "act"]
