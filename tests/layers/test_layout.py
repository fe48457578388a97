"""Layouts: the token matrix times the values of all tokens equals the output of the mixer."""

import pytest
import torch
import torch.nn.functional as F

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.layout import Channels, Layout, Points, interpolation_weights, region_shares
from vitreous.layers.tokens import Tokens

OPTIONS = {
    "attention": {},
    "window": {"size": 3},
    "local": {"radius": 1},
    "dilated": {"radius": 1, "dilation": 2},
    "block_sparse": {"block": 2, "num_random": 1},
    "performer": {"num_features": 16},
    "deformable": {"strides": (2,)},
    "deformable_points": {},
}
WITHOUT_PREFIX = ("deformable", "deformable_points")
CASES = [(name, num) for name in OPTIONS for num in (0, 1, 5) if not (num and name in WITHOUT_PREFIX)]


def model(name, num_prefix):
    prefix = {"class_token": bool(num_prefix), "num_registers": max(0, num_prefix - 1)}
    if not num_prefix:
        prefix |= {"pool": "mean"}
    mixer = {"mixer": name} | OPTIONS[name]
    return fill(vt.create_model("vit_tiny_16", depth=2, image_size=32, patch_size=4, mixer=mixer, **prefix)).double()


def values(mixer, x):
    """Values of all tokens of the image, (b, h, n, k)."""
    if hasattr(mixer, "points") and hasattr(mixer.points, "value"):
        out, heads = mixer.points.value(x), mixer.points.num_heads
    elif hasattr(mixer, "kv"):
        out, heads = mixer.kv(x)[..., x.shape[-1] :], mixer.num_heads
    else:
        out, heads = mixer.qkv(x)[..., 2 * x.shape[-1] :], mixer.num_heads
    return out.unflatten(-1, (heads, -1)).transpose(1, 2)


@pytest.mark.parametrize(("name", "num_prefix"), CASES)
def test_token_matrix_times_values_is_the_output(name, num_prefix):
    made, images = model(name, num_prefix), torch.randn(2, 3, 19, 27).double()
    if name == "deformable":  # values have a bias at points outside of the map as well
        for block in made.blocks:
            torch.nn.init.zeros_(block.mixer.kv.bias)
    seen = {}
    for index, block in enumerate(made.blocks):
        mixer = block.mixer
        mixer.register_forward_pre_hook(lambda _, given, index=index: seen.setdefault(index, {}).update(x=given[0]))
        last = mixer.points.proj if hasattr(mixer.points if name in WITHOUT_PREFIX else mixer, "value") else mixer.proj
        last.register_forward_pre_hook(lambda _, given, index=index: seen[index].update(out=given[0]))
    with vt.record(made) as trace:
        recorded = made(images)
    assert error(recorded, made(images)) < 1e-5
    for index, whole in enumerate(trace.token_matrices().values()):
        x, out = seen[index]["x"], seen[index]["out"]
        assert whole.shape == (2, 3, num_prefix + 35, num_prefix + 35)
        sums = whole.sum(-1)
        assert torch.allclose(sums, torch.ones(()).double()) or name in WITHOUT_PREFIX  # points may lie outside
        assert (sums < 1 + 1e-6).all()
        expected = (whole @ values(made.blocks[index].mixer, x)).transpose(1, 2).flatten(2)
        assert error(expected, out) < 1e-5


def test_region_shares_equal_pooling():
    cells = torch.randn(1, 1, 7, 10, dtype=torch.float64)
    for count in ((3, 4), (7, 10), (9, 2)):
        rows, columns = region_shares((7, 10), count, None, like=cells)
        pooled = torch.einsum("vy,wx,bcyx->bcvw", rows, columns, cells)
        assert torch.allclose(pooled, F.adaptive_avg_pool2d(cells, count))
    rows, columns = region_shares((7, 10), (2, 3), (4, 4), like=cells)
    pooled = torch.einsum("vy,wx,bcyx->bcvw", rows, columns, cells)
    assert torch.allclose(pooled, F.avg_pool2d(cells, 4, ceil_mode=True, count_include_pad=False))


def test_a_reduced_key_is_divided_among_its_region():
    layout = Layout(Tokens((2, 3), 1), Tokens((1, 2), 1), (2, 2))
    weights = torch.zeros(1, 1, 7, 3)
    weights[..., 4, :] = torch.tensor([0.2, 0.4, 0.4])  # the prefix token, four cells, two cells
    expected = torch.tensor([0.2, 0.1, 0.1, 0.2, 0.1, 0.1, 0.2])
    assert torch.allclose(layout.to_token_matrix(weights)[0, 0, 4], expected)


def test_prefix_queries():
    whole = Layout(Tokens(None, 1), Tokens((1, 2), 1)).to_token_matrix(torch.tensor([[[[0.5, 0.25, 0.25]]]]))
    assert torch.equal(whole[0, 0], torch.tensor([[0.5, 0.25, 0.25], [0, 0, 0], [0, 0, 0]]))


def test_a_point_is_interpolated_between_four_cells():
    """Halfway between the first two columns, three quarters from the first row to the second."""
    points = torch.tensor([(1.0 / 3, 1.25 / 2)]).reshape(1, 1, 1, 1, 2)
    whole = Points((2, 3), points).to_token_matrix(torch.ones(1, 2, 6, 1))
    assert torch.allclose(whole[0, 1, 3], torch.tensor([0.125, 0.125, 0, 0.375, 0.375, 0]))


def test_points_outside_have_no_weight():
    assert torch.allclose(
        interpolation_weights(torch.tensor([-0.25, -1.0, 1.5]), 2), torch.tensor([[0.75, 0], [0, 0], [0, 0.5]])
    )


def test_layouts_without_a_token_matrix_raise():
    with pytest.raises(ValueError, match="channels attend to channels"):
        Channels((2, 2)).to_token_matrix(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match="tokens were dropped"):
        Layout(Tokens(), Tokens()).to_token_matrix(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match="record without reduce"):
        Points((2, 2), torch.zeros(1, 2, 1, 3, 2)).to_token_matrix(torch.zeros(1, 1, 4, 3))
