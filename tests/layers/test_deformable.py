"""Both kinds of deformable attention equal loops over points, and Deformable DETR's equals transformers."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers.models.deformable_detr import modeling_deformable_detr

import vitreous as vt
from tests.parity import TOLERANCE, error, fill
from vitreous.layers.deformable import Deformable
from vitreous.layers.deformable_points import DeformablePoints, PointAttention, deformable_points
from vitreous.layers.mixer import MixerContext

GRIDS = [(1, 1), (3, 5), (4, 4), (5, 8)]
WITHOUT_PREFIX = {"class_token": False, "pool": "mean"}


def at(values, y, x):
    """Bilinear interpolation of ``values`` (c, y, x) at a position in cells from the center of the first."""
    total = torch.zeros(values.shape[0], dtype=values.dtype)
    top, left = math.floor(y), math.floor(x)
    for row in (top, top + 1):
        for column in (left, left + 1):
            if 0 <= row < values.shape[1] and 0 <= column < values.shape[2]:
                total += (1 - abs(y - row)) * (1 - abs(x - column)) * values[:, row, column]
    return total


def across(place, length):
    """From −1 … 1 to cells, where −1 and 1 are the centers of the outer cells."""
    return (place + 1) / 2 * (length - 1)


def naive_deformable(x, q, *, shifts, make_k, make_v, table, num_groups, reach):
    """DAT's attention in one image, x and q (d, y, x) → (d, y, x): one point, one query, one head at a time.

    ``shifts`` (g, 2, v, w) are (y, x) before tanh; ``table`` (h, rows, columns); ``make_k`` and ``make_v`` take (m, d).
    """
    _, rows, columns = x.shape
    num_heads, (v, w) = len(table), shifts.shape[2:]
    places, sampled = [], []
    for group, part in enumerate(x.chunk(num_groups)):
        places.append([])
        for i in range(v):
            for j in range(w):
                dy, dx = (reach * math.tanh(shift) for shift in shifts[group, :, i, j].tolist())
                places[group].append(((i + 0.5 + dy) / v * 2 - 1, (j + 0.5 + dx) / w * 2 - 1))
        sampled.append(torch.stack([at(part, across(y, rows), across(x_, columns)) for y, x_ in places[group]]))
    sampled = torch.cat(sampled, dim=1)
    keys, values = (make(sampled).chunk(num_heads, dim=1) for make in (make_k, make_v))
    out = torch.zeros_like(x)
    per_group = num_heads // num_groups
    for y in range(rows):
        for column in range(columns):
            here = (y + 0.5) / rows * 2 - 1, (column + 0.5) / columns * 2 - 1
            biases = [
                [
                    at(
                        table[group * per_group : (group + 1) * per_group],
                        across((here[0] - point[0]) / 2, table.shape[1]),
                        across((here[1] - point[1]) / 2, table.shape[2]),
                    )
                    for point in places[group]
                ]
                for group in range(num_groups)
            ]
            looks = []
            for head, query in enumerate(q[:, y, column].chunk(num_heads)):
                bias = torch.stack(biases[head // per_group])[:, head % per_group]
                weights = (keys[head] @ query / math.sqrt(len(query)) + bias).softmax(0)
                looks.append(weights @ values[head])
            out[:, y, column] = torch.cat(looks)
    return out


def deformable(dim=24, num_heads=6, grid=(4, 4), stage=0, **options):
    return fill(Deformable(**options).build(MixerContext(dim=dim, num_heads=num_heads, grid=grid, stage=stage)))


def by_hand(mixer, x, grid, stride, reach):
    """Apply the loop to the tokens of one image."""
    dim, points = x.shape[1], mixer.points
    q = mixer.q(x).T.unflatten(1, grid)
    local = F.conv2d(
        q.reshape(mixer.num_groups, -1, *grid),
        points.conv.weight,
        points.conv.bias,
        stride=stride,
        padding=points.conv.kernel_size[0] // 2,
        groups=dim // mixer.num_groups,
    )
    shifts = (F.gelu(points.norm(local.movedim(1, -1))) @ points.proj.weight.T).movedim(-1, 1)
    table = mixer.relative.table[0].T.unflatten(1, (2 * mixer.relative.grid[0] - 1, -1))
    key, value = ((mixer.kv.weight[part], mixer.kv.bias[part]) for part in (slice(dim), slice(dim, None)))
    out = naive_deformable(
        x.T.unflatten(1, grid),
        q,
        shifts=shifts,
        make_k=lambda tokens: F.linear(tokens, *key),
        make_v=lambda tokens: F.linear(tokens, *value),
        table=table,
        num_groups=mixer.num_groups,
        reach=reach,
    )
    return mixer.proj(out.flatten(1).T)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("stride", "kernel", "reach"), [(1, 3, 1.0), (2, 5, 1.5)])
@torch.no_grad()
def test_equals_the_loop(grid, stride, kernel, reach):
    """On the grid of the bias table, and on other grids, to which it is interpolated."""
    mixer = deformable(strides=(stride,), kernels=(kernel,), reach=reach)
    x = torch.randn(2, grid[0] * grid[1], 24)
    expected = torch.stack([by_hand(mixer, image, grid, stride, reach) for image in x])
    assert error(mixer(x, grid), expected) < TOLERANCE


@pytest.mark.parametrize(
    ("num_heads", "num_groups"), [(12, 3), (24, 6), (16, 4), (32, 8), (6, 2), (3, 1), (5, 5), (1, 1)]
)
def test_groups_equal_the_paper_and_fit_any_number_of_heads(num_heads, num_groups):
    assert deformable(dim=4 * num_heads, num_heads=num_heads).num_groups == num_groups


def test_kernels_and_strides_follow_the_stage():
    mixers = [deformable(stage=stage, strides=(8, 4, 1)) for stage in range(5)]
    assert [mixer.points.conv.kernel_size[0] for mixer in mixers] == [9, 7, 5, 3, 3]
    assert [mixer.points.conv.stride[0] for mixer in mixers] == [8, 4, 1, 1, 1]


@pytest.mark.parametrize(("stride", "expected"), [(1, (7, 10)), (2, (4, 5)), (4, (2, 3)), (16, (1, 1))])
def test_a_point_for_every_few_cells_and_none_beyond_its_reach(stride, expected):
    mixer = deformable(strides=(stride,), reach=0.75)
    mixer.points.proj.weight.data *= 1000
    points = mixer.points(mixer.maps(torch.randn(1, 70, 24), (7, 10)))
    assert points.shape[1:3] == expected
    y, x = (((torch.arange(n) + 0.5) / n * 2 - 1) for n in expected)
    away = (points - torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)).abs()
    away = away / torch.tensor([2 / expected[1], 2 / expected[0]])
    assert away.max().item() == pytest.approx(0.75, rel=1e-4)


def test_shifts_learn_from_what_is_read():
    mixer = deformable()
    mixer(torch.randn(2, 15, 24), (3, 5)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in mixer.parameters())


def naive_points(values, shapes, locations, weights):
    """(b, n, h, k) … → (b, q, h·k): one query, one head, one map, one point at a time."""
    b, q, h, _, p, _ = locations.shape
    out = torch.zeros(b, q, h, values.shape[3], dtype=values.dtype)
    for image in range(b):
        for head in range(h):
            start = 0
            for level, (rows, columns) in enumerate(shapes):
                cells = values[image, start : start + rows * columns, head].T.unflatten(1, (rows, columns))
                start += rows * columns
                for query in range(q):
                    for point in range(p):
                        x, y = locations[image, query, head, level, point].tolist()
                        share = weights[image, query, head, level, point]
                        out[image, query, head] += share * at(cells, y * rows - 0.5, x * columns - 0.5)
    return out.flatten(2)


SHAPES = [(6, 4), (3, 5), (1, 1)]


def test_points_on_several_maps_equal_the_loop():
    values = torch.randn(2, 24 + 15 + 1, 3, 5)
    locations = 1.6 * torch.rand(2, 7, 3, len(SHAPES), 4, 2) - 0.3  # some of them outside
    weights = torch.rand(2, 7, 3, len(SHAPES), 4)
    expected = naive_points(values, SHAPES, locations, weights)
    assert error(deformable_points(values, SHAPES, locations, weights=weights), expected) < TOLERANCE


def renamed(state):
    names = {
        "sampling_offsets": "offsets",
        "attention_weights": "weights",
        "value_proj": "value",
        "output_proj": "proj",
    }
    return {f"{names[name.split('.')[0]]}.{name.split('.')[1]}": tensor for name, tensor in state.items()}


@torch.no_grad()
def test_points_equal_transformers():
    config = SimpleNamespace(d_model=32, num_feature_levels=len(SHAPES), disable_custom_kernels=True)
    theirs = fill(modeling_deformable_detr.DeformableDetrMultiscaleDeformableAttention(config, num_heads=4, n_points=3))
    ours = PointAttention(32, 4, num_levels=len(SHAPES), num_points=3).eval()
    ours.load_state_dict(renamed(theirs.state_dict()))
    x, context, reference = torch.randn(2, 9, 32), torch.randn(2, 40, 32), torch.rand(2, 9, len(SHAPES), 2)
    expected, _ = theirs(
        x,
        encoder_hidden_states=context,
        reference_points=reference,
        spatial_shapes=torch.tensor(SHAPES),
        spatial_shapes_list=SHAPES,
    )
    assert error(ours(x, context, shapes=SHAPES, reference=reference), expected) < TOLERANCE


@pytest.mark.parametrize("grid", GRIDS)
@torch.no_grad()
def test_points_around_every_cell_equal_the_loop(grid):
    mixer = fill(DeformablePoints(num_points=3).build(MixerContext(dim=24, num_heads=2, grid=(4, 4))))
    inner, n = mixer.points, grid[0] * grid[1]
    x = torch.randn(2, n, 24)
    offsets = inner.offsets(x).reshape(2, n, 2, 3, 2)
    weights = inner.weights(x).reshape(2, n, 2, 3).softmax(-1)
    center = torch.tensor([[(c + 0.5) / grid[1], (r + 0.5) / grid[0]] for r in range(grid[0]) for c in range(grid[1])])
    locations = center[None, :, None, None] + offsets / torch.tensor([grid[1], grid[0]])
    values = inner.value(x).reshape(2, n, 2, 12)
    expected = inner.proj(naive_points(values, [grid], locations[:, :, :, None], weights[:, :, :, None]))
    assert error(mixer(x, grid), expected) < TOLERANCE


@pytest.mark.parametrize("init", ["vit", "deit"])
def test_points_are_initialized_as_rays_in_any_model(init):
    mixer = DeformablePoints(num_points=2)
    model = vt.create_model("vit_tiny_16", depth=1, num_heads=4, mixer=mixer, init=init, **WITHOUT_PREFIX)
    points = model.blocks[0].mixer.points
    directions = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    star = torch.stack([directions, 2 * directions], dim=1)
    assert torch.allclose(points.offsets.bias.reshape(4, 2, 2), star, atol=1e-6)
    assert not any(p.abs().max() for p in (points.offsets.weight, points.weights.weight, points.weights.bias))


MIXERS = [Deformable(), Deformable(strides=(2,)), DeformablePoints()]


@pytest.mark.parametrize("mixer", MIXERS, ids=repr)
class TestBoth:
    def test_in_a_vit(self, mixer):
        model = vt.create_model("vit_tiny_16", mixer=mixer, depth=2, image_size=64, **WITHOUT_PREFIX)
        model(torch.randn(2, 3, 64, 80)).square().sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())

    def test_one_image_does_not_depend_on_its_batch(self, mixer):
        layer = fill(mixer.build(MixerContext(dim=24, num_heads=3, grid=(4, 4))))
        x = torch.randn(3, 15, 24)
        together = layer(x, (3, 5))
        assert error(torch.cat([layer(image[None], (3, 5)) for image in x]), together) < TOLERANCE

    def test_prefix_tokens_are_refused(self, mixer):
        with pytest.raises(ValueError, match=r"does not support prefix tokens \(.* no place\)"):
            vt.create_model("vit_tiny_16", mixer=mixer)
        layer = mixer.build(MixerContext(dim=24, num_heads=3, grid=(4, 4)))
        for grid, num_prefix in (((3, 5), 1), (None, 0)):
            with pytest.raises(ValueError, match="needs a grid and no prefix tokens, got grid="):
                layer(torch.randn(1, 16, 24), grid, num_prefix)


BAD = [
    (lambda: Deformable(kernels=(5, 4)), "each of kernels must be odd, to be centered on a cell; got 4"),
    (lambda: Deformable(strides=(0,)), "each of strides must be at least 1"),
    (lambda: Deformable(heads_per_group=0), "heads_per_group must be at least 1"),
    (lambda: Deformable(reach=-1.0), "reach must not be negative"),
    (lambda: DeformablePoints(num_points=0), "num_points must be at least 1, got 0"),
    (
        lambda: vt.create_model("vit_tiny_16", mixer="deformable", position="rope", **WITHOUT_PREFIX),
        "between the cells",
    ),
    (
        lambda: vt.create_model("vit_tiny_16", mixer="deformable", position="relative", **WITHOUT_PREFIX),
        "it has its own relative bias",
    ),
    (lambda: PointAttention(10, 3), "multiple of num_heads"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_options_are_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
