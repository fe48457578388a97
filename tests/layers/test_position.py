"""Each position encoding has its defining property, and tables are resampled correctly between grids."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import RotaryEmbeddingCat, apply_rot_embed_cat
from timm.layers.pos_embed_rel import RelPosBias

from tests.parity import error, fill
from vitreous.layers.position import Learned, LearnedAxes, RelativeBias, Rotary, SinCos, resample

grids = st.tuples(st.integers(1, 24), st.integers(1, 24))
many = settings(max_examples=300, deadline=None)


@many
@given(old=grids, new=grids, num_prefix=st.integers(0, 5))
def test_resample_has_the_target_shape_and_keeps_constants_and_prefix(old, new, num_prefix):
    prefix = torch.randn(1, num_prefix, 3)
    table = torch.cat([prefix, torch.full((1, old[0] * old[1], 3), 0.7)], dim=1)
    result = resample(table, old, new, num_prefix)
    assert result.shape == (1, num_prefix + new[0] * new[1], 3)
    assert torch.equal(result[:, :num_prefix], prefix)
    assert torch.allclose(result[:, num_prefix:], torch.tensor(0.7), atol=1e-5)


@many
@given(old=grids, new=grids)
def test_resample_treats_the_axes_alike(old, new):
    """Resampling the transposed grid gives the transposed result."""
    table = torch.randn(1, old[0] * old[1], 2, generator=torch.Generator().manual_seed(7))
    turned = table.view(old[0], old[1], 2).transpose(0, 1).reshape(1, -1, 2)
    expected = resample(table, old, new).view(new[0], new[1], 2).transpose(0, 1).reshape(1, -1, 2)
    assert torch.allclose(resample(turned, old[::-1], new[::-1]), expected, atol=1e-5)


def test_grids_of_equal_size_are_resampled():
    rows = torch.arange(8.0).repeat_interleave(32)[None, :, None]
    result = resample(rows, (8, 32), (16, 16)).view(16, 16)
    assert torch.allclose(result, result[:, :1].expand(-1, 16), atol=1e-5)  # still constant along x
    assert (result[1:, 0] > result[:-1, 0]).all()  # still growing along y, over 16 rows now
    assert not torch.equal(result.view(1, -1, 1), rows)


@pytest.mark.parametrize(
    ("old", "new"), [((10, 1), (20, 1)), ((1, 10), (1, 20)), ((10, 3), (20, 1)), ((3, 10), (1, 20))]
)
@pytest.mark.parametrize("width", [1, 4])
def test_resample_is_exact_on_a_ramp(old, new, width):
    """Bicubic interpolation reproduces a linear ramp away from the border (torch's own does not when x is 1)."""
    axis = 0 if old[0] == 10 else 1
    index = torch.arange(old[0] * old[1])
    ramp = (index // old[1] if axis == 0 else index % old[1]).float()
    result = resample(ramp[None, :, None].expand(1, -1, width).contiguous(), old, new)[0, :, 0]
    expected = (np.arange(20) + 0.5) / 2 - 0.5
    assert np.allclose(result[4:-4], expected[4:-4], atol=1e-5)


@many
@given(old=grids, new=grids, antialias=st.booleans())
def test_resample_equals_torch_where_torch_is_right(old, new, antialias):
    table = torch.randn(1, old[0] * old[1], 4, generator=torch.Generator().manual_seed(5))
    image = table.view(1, *old, 4).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    expected = F.interpolate(image, size=new, mode="bicubic", align_corners=False, antialias=antialias)
    actual = resample(table, old, new, antialias=antialias)
    assert torch.allclose(actual, expected.permute(0, 2, 3, 1).reshape(1, -1, 4), atol=1e-4)


def test_resample_checks_the_number_of_rows():
    with pytest.raises(ValueError, match=r"grid \(4, 4\) with 1 prefix tokens has 17 rows, got 16"):
        resample(torch.zeros(1, 16, 2), (4, 4), (2, 2), 1)


def test_learned_axes_are_a_sum():
    position = fill(LearnedAxes((3, 5), 4))
    table = position((3, 5)).view(3, 5, 4)
    for y in range(3):
        for x in range(5):
            assert torch.allclose(table[y, x], position.rows[0, y] + position.columns[0, x])


def test_sincos_of_one_axis_equals_the_loop():
    table = SinCos(8, axes=1)((2, 3))[0]
    for p in range(6):
        for i in range(4):
            angle = p / 10_000 ** (2 * i / 8)
            assert table[p, 2 * i].item() == pytest.approx(np.sin(angle), abs=1e-6)
            assert table[p, 2 * i + 1].item() == pytest.approx(np.cos(angle), abs=1e-6)


def test_sincos_of_two_axes_tells_rows_from_columns_and_sees_only_offsets():
    table = SinCos(32)((6, 7))[0].view(6, 7, 32)
    assert torch.equal(table[:, 0, :16], table[:, 5, :16])  # the first half follows y
    assert torch.equal(table[0, :, 16:], table[4, :, 16:])  # the second x
    products = torch.einsum("yxd,vwd->yxvw", table, table)
    assert products[0, 0, 2, 3].item() == pytest.approx(products[3, 2, 5, 5].item(), abs=1e-4)
    assert products[0, 0, 2, 3].item() != pytest.approx(products[0, 0, 2, 2].item(), abs=1e-2)


@pytest.mark.parametrize("num_prefix", [0, 1])
def test_relative_bias_equals_timm(num_prefix):
    ours = fill(RelativeBias((3, 5), 4, num_prefix))
    theirs = RelPosBias((3, 5), 4, prefix_tokens=num_prefix)
    state = torch.cat([ours.table[0], *([ours.prefix] if num_prefix else [])])
    theirs.relative_position_bias_table.data.copy_(state)
    assert error(ours((3, 5), num_prefix), theirs.get_bias()[0]) < 1e-6


@pytest.mark.parametrize("num_prefix", [0, 2])
def test_relative_bias_equals_the_loop_at_another_grid(num_prefix):
    bias = fill(RelativeBias((3, 4), 2, num_prefix))
    table = resample(bias.table, (5, 7), (7, 3))[0].view(7, 3, 2)
    actual = bias((4, 2), num_prefix)
    for i in range(8):
        for j in range(8):
            offset = table[i // 2 - j // 2 + 3, i % 2 - j % 2 + 1]
            assert torch.allclose(actual[:, num_prefix + i, num_prefix + j], offset)
    if num_prefix:
        assert torch.allclose(actual[:, 0, 5], bias.prefix[0])
        assert torch.allclose(actual[:, 5, 1], bias.prefix[1])
        assert torch.allclose(actual[:, 1, 0], bias.prefix[2])


@many
@given(a=st.tuples(st.integers(0, 5), st.integers(0, 6)), b=st.tuples(st.integers(0, 5), st.integers(0, 6)))
def test_rotary_products_see_only_the_offset(a, b):
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 16, generator=generator, dtype=torch.float64)
    rotary = Rotary(16)
    turned_q = rotary(q.expand(1, 1, 12 * 14, 16), (12, 14)).view(12, 14, 16)
    turned_k = rotary(k.expand(1, 1, 12 * 14, 16), (12, 14)).view(12, 14, 16)
    product = turned_q[a] @ turned_k[b]
    shifted = turned_q[a[0] + 6, a[1] + 7] @ turned_k[b[0] + 6, b[1] + 7]
    assert product.item() == pytest.approx(shifted.item(), abs=1e-4)
    assert turned_q[a].norm().item() == pytest.approx(q.norm().item(), abs=1e-5)


def test_rotary_equals_timm_and_leaves_the_prefix():
    x = torch.randn(2, 3, 2 + 35, 16)
    theirs = RotaryEmbeddingCat(16, in_pixels=False, temperature=100.0, feat_shape=(5, 7))
    expected = apply_rot_embed_cat(x[:, :, 2:], theirs.get_embed())
    actual = Rotary(16, temperature=100.0)(x, (5, 7), 2)
    assert torch.equal(actual[:, :, :2], x[:, :, :2])
    assert error(actual[:, :, 2:], expected) < 1e-5


def test_learned_accepts_a_table_without_prefix_rows():
    module = Learned((2, 2), 3, num_prefix=1)
    adapted = module.adapt("table", torch.ones(1, 4, 3), (2, 2))
    assert torch.equal(adapted, torch.cat([torch.zeros(1, 1, 3), torch.ones(1, 4, 3)], dim=1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SinCos(6), "divisible by 4, got 6"),
        (lambda: SinCos(5, axes=1), "divisible by 2, got 5"),
        (lambda: Rotary(6), "divisible by 4, got 6"),
        (lambda: Rotary(8)(torch.zeros(1, 1, 3, 8), None), "dropped tokens"),
    ],
)
def test_invalid_widths_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()
