"""Weight standardization and TensorFlow's padding against loops."""

import math

import pytest
import torch

from tests.parity import error, fill
from vitreous.layers.conv import MaxPoolSame, StdConv2d, pad_same

GRIDS = [(1, 1), (3, 5), (8, 6), (7, 10)]


def padding_before(side, kernel, stride):
    """Padding before the first cell: ⌈side / stride⌉ windows, odd padding at the end."""
    cells = math.ceil(side / stride)
    return cells, max(0, (cells - 1) * stride + kernel - side) // 2


def windows(x, kernel, stride):
    """Yield (row, column, {(dy, dx): values}) of every window, inside the map only."""
    rows, top = padding_before(x.shape[2], kernel, stride)
    columns, left = padding_before(x.shape[3], kernel, stride)
    for row in range(rows):
        for column in range(columns):
            inside = {}
            for dy in range(kernel):
                for dx in range(kernel):
                    y, z = row * stride - top + dy, column * stride - left + dx
                    if 0 <= y < x.shape[2] and 0 <= z < x.shape[3]:
                        inside[dy, dx] = x[:, :, y, z]
            yield row, column, inside


def naive_std_conv(conv, x, kernel, stride):
    out = torch.zeros(x.shape[0], len(conv.weight), *(math.ceil(side / stride) for side in x.shape[2:])).to(x)
    for index, filter in enumerate(conv.weight):
        numbers = filter.flatten().tolist()
        mean = sum(numbers) / len(numbers)
        variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
        standard = (filter - mean) / math.sqrt(variance + conv.eps)
        for row, column, inside in windows(x, kernel, stride):
            out[:, index, row, column] = sum(values @ standard[:, dy, dx] for (dy, dx), values in inside.items())
    return out


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (1, 2), (3, 2), (7, 2)])
def test_standardized_convolution_equals_a_loop(grid, kernel, stride):
    conv = fill(StdConv2d(2, 3, kernel, stride=stride)).double()
    with torch.no_grad():
        conv.weight.mul_(3).add_(0.7)
        x = torch.randn(2, 2, *grid).double()
        assert error(conv(x), naive_std_conv(conv, x, kernel, stride)) < 1e-10


@pytest.mark.parametrize("grid", GRIDS)
def test_pooling_equals_a_loop_also_where_all_is_negative(grid):
    x = -torch.rand(2, 3, *grid) - 1
    pooled = MaxPoolSame(3, stride=2)(x)
    for row, column, inside in windows(x, 3, 2):
        assert torch.equal(pooled[:, :, row, column], torch.stack(list(inside.values())).amax(0))


def test_padding_that_cannot_be_halved_goes_below_and_right():
    padded = pad_same(torch.ones(1, 1, 4, 5), 3, 2)
    assert padded.shape == (1, 1, 5, 7)
    assert padded[0, 0].sum(1).tolist() == [5, 5, 5, 5, 0]
    assert padded[0, 0, 0].tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_scale_and_offset_of_a_filter_do_not_matter():
    conv, x = fill(StdConv2d(4, 8, 3)), torch.randn(1, 4, 6, 6)
    with torch.no_grad():
        before = conv(x)
        conv.weight.mul_(5).add_(1)
        assert error(conv(x), before) < 1e-5
