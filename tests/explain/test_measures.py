"""Measures against values computed by hand, slow loops in plain Python, and common wrong versions."""

import math
import statistics

import numpy as np
import pytest
import torch

import vitreous as vt
from tests.family import small
from vitreous.explain import measures


def random_matrices(*num_heads, tokens=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (tokens, tokens)
    return [torch.randn(2, h, *shape, generator=generator, dtype=torch.float64).softmax(-1) for h in num_heads]


# One image, one head, two prefix tokens, 2×3 cells of 6×4 pixels. Prefix tokens attend uniformly. Every
# cell gives half of its weight to the first prefix token and half to the next cell in raster order, the last to the
# first: four steps of one column (4 pixels) and two from the end of a row to its other end (√(6² + 8²) = 10 pixels).
GRID, NUM_PREFIX, STRIDE = (2, 3), 2, (6.0, 4.0)
NEXT_CELL = torch.full((1, 1, 8, 8), 1 / 8)
NEXT_CELL[:, :, 2:] = 0
for cell in range(6):
    NEXT_CELL[0, 0, 2 + cell, 0] = 0.5
    NEXT_CELL[0, 0, 2 + cell, 2 + (cell + 1) % 6] = 0.5
BY_HAND = (4 * 4 + 2 * 10) / 6


def test_entropy_by_hand():
    weights = torch.tensor([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0], [0.25, 0.25, 0.25, 0.25]])
    expected = torch.tensor([0, math.log(2), 1.5 * math.log(2), math.log(4)])
    assert torch.allclose(measures.entropy(weights), expected)
    wrong = {
        "over queries": measures.entropy(weights.T),
        "in bits": measures.entropy(weights) / math.log(2),
        "of the mean": measures.entropy(weights.mean(0, keepdim=True)).expand(4),
    }
    for version, numbers in wrong.items():
        assert not torch.allclose(numbers, expected, atol=0.1), version


def test_entropy_keeps_the_axes_of_windows():
    assert measures.entropy(torch.full((2, 3, 5, 4, 7), 1 / 7)).shape == (2, 3, 5, 4)


def test_mean_distance_by_hand():
    found = measures.mean_distance(NEXT_CELL, GRID, NUM_PREFIX, stride=STRIDE)
    assert torch.allclose(found, torch.tensor([[BY_HAND]]))


def distance_without_renormalizing(weights):
    return 0.5 * measures.mean_distance(weights, GRID, NUM_PREFIX, stride=STRIDE)


def distance_weighing_by_what_is_seen(weights):
    """One sum over all pairs: a cell that attends to prefix tokens counts less."""
    weights = weights.clone()
    weights[:, :, 4, 0], weights[:, :, 4, 5] = 0, 1
    cells = weights[:, :, 2:, 2:]
    y, x = torch.arange(6) // 3 * 6.0, torch.arange(6) % 3 * 4.0
    distance = torch.hypot(y[:, None] - y, x[:, None] - x)
    return (cells * distance).sum((-2, -1)) / cells.sum((-2, -1))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda weights: measures.mean_distance(weights, (3, 2), NUM_PREFIX, stride=STRIDE),
        lambda weights: measures.mean_distance(weights, (1, 6), NUM_PREFIX, stride=STRIDE),
        lambda weights: measures.mean_distance(weights, GRID, NUM_PREFIX, stride=STRIDE[::-1]),
        lambda weights: measures.mean_distance(weights[..., 1:7, 1:7], GRID, 0, stride=STRIDE),
        lambda weights: measures.mean_distance(weights.transpose(-2, -1), (3, 2), NUM_PREFIX, stride=STRIDE),
        distance_without_renormalizing,
        distance_weighing_by_what_is_seen,
    ],
    ids=["sides swapped", "one row", "steps swapped", "one prefix token", "columns", "with the prefix", "one sum"],
)
def test_wrong_distances_are_seen(wrong):
    assert (wrong(NEXT_CELL) - BY_HAND).abs().item() > 0.1


def test_a_cell_that_attends_to_no_cell_has_no_distance():
    weights = NEXT_CELL.clone()
    weights[:, :, 4] = 0
    weights[:, :, 4, 1] = 1
    found = measures.mean_distance(weights, GRID, NUM_PREFIX, stride=STRIDE)
    assert torch.allclose(found, torch.tensor([[(4 * 4 + 10) / 5]]))
    weights[:, :, :, 2:] = 0
    assert measures.mean_distance(weights, GRID, NUM_PREFIX, stride=STRIDE).isnan().all()


def test_mean_map_by_hand():
    """Columns sum to 2, 3, 1 over both heads' three queries: means 1/3, 1/2, 1/6 where an even share is 1/3."""
    weights = torch.tensor([[[[1.0, 0, 0], [0, 1, 0], [0, 1, 0]], [[1, 0, 0], [0, 0, 1], [0, 1, 0]]]])
    expected = torch.tensor([[[1.5, 0.5]]])
    assert torch.allclose(measures.mean_map(weights, (1, 2), 1), expected)
    assert not torch.allclose(measures.mean_map(weights.transpose(-2, -1), (1, 2), 1), expected)
    even = torch.full((2, 3, 8, 8), 1 / 8)
    assert torch.allclose(measures.mean_map(even, GRID, NUM_PREFIX), torch.ones(2, 2, 3))


def test_tokens_without_queries_do_not_dilute_the_map():
    weights = torch.zeros(1, 2, 8, 8)
    weights[:, :, 0] = 1 / 8
    assert torch.allclose(measures.mean_map(weights, GRID, NUM_PREFIX), torch.ones(1, 2, 3))


def test_a_map_has_the_orientation_of_the_image():
    weights = torch.zeros(1, 1, 8, 8)
    weights[..., 2 + 1 * 3 + 2] = 1  # all attend to the last cell of the second row
    assert measures.mean_map(weights, GRID, NUM_PREFIX)[0].tolist() == [[0, 0, 0], [0, 0, 8]]


def test_spectrum_and_ranks_by_hand():
    assert torch.allclose(measures.spectrum(torch.diag(torch.tensor([3.0, -4.0]))), torch.tensor([4.0, 3.0]))
    even = torch.full((5, 5), 1 / 5)
    assert torch.allclose(measures.spectrum(even), torch.tensor([1.0, 0, 0, 0, 0]), atol=1e-6)
    assert measures.rank(even).item() == 1
    assert measures.effective_rank(even).item() == pytest.approx(1, abs=1e-4)
    assert measures.effective_rank(torch.eye(4)).item() == pytest.approx(4)
    quarters = math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))  # 1.7548
    assert measures.effective_rank(torch.diag(torch.tensor([30.0, 10.0]))).item() == pytest.approx(quarters)
    energy = math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1))  # of σ², which is another measure
    assert abs(quarters - energy) > 0.3
    assert measures.effective_rank(torch.zeros(2, 3, 3)).tolist() == [0, 0]
    assert measures.rank(torch.zeros(2, 3, 3)).tolist() == [0, 0]


@pytest.mark.parametrize(("tolerance", "expected"), [(None, 3), (0.0, 3), (0.05, 2), (0.5, 1)])
def test_rank_counts_relative_to_the_largest(tolerance, expected):
    for scale in (1.0, 1e-3, 1e3):
        assert measures.rank(torch.diag(scale * torch.tensor([1.0, 0.1, 0.01])), tolerance).item() == expected


def test_rank_of_a_product_is_the_width_in_between():
    torch.manual_seed(0)
    matrices = torch.randn(2, 3, 20, 4) @ torch.randn(2, 3, 4, 20)
    assert measures.rank(matrices).tolist() == [[4] * 3] * 2


STAY, SWAP, BOTH = torch.eye(2), torch.eye(2).flip(0), torch.full((2, 2), 0.5)


def test_similarities_by_hand():
    """⟨I, both⟩ / (‖I‖ ‖both‖) = 1 / (√2 · 1); the first layer's mean is what the second layer does."""
    layers = [torch.stack([STAY, SWAP])[None], BOTH[None, None]]
    r = math.sqrt(0.5)
    expected = torch.tensor([[[1, 0, r], [0, 1, r], [r, r, 1]]])
    assert torch.allclose(measures.head_similarity(layers), expected)
    assert torch.allclose(measures.layer_similarity(layers), torch.ones(1, 2, 2))
    backwards = measures.head_similarity(layers[::-1])
    assert not torch.allclose(backwards, expected, atol=0.1)


def test_stream_similarity_by_hand():
    """For one channel CKA is the squared correlation: 1²/(2 · 2) of the first two, 0 of first and last, 3²/(2 · 6)."""
    streams = [torch.tensor(values)[None, :, None] for values in ([1.0, -1, 0], [1.0, 0, -1], [1.0, 1, -2])]
    expected = torch.tensor([[[1, 0.25, 0], [0.25, 1, 0.75], [0, 0.75, 1]]])
    assert torch.allclose(measures.stream_similarity(streams), expected, atol=1e-6)
    shifted = [stream + 5 for stream in streams]
    assert torch.allclose(measures.stream_similarity(shifted), expected, atol=1e-5)
    assert not torch.allclose(uncentered(shifted), expected, atol=0.1)


def uncentered(streams):
    return measures.cosines(torch.stack([(s @ s.transpose(-2, -1)).flatten(1) for s in streams], dim=1))


def test_stream_similarity_ignores_rotation_scale_and_layout():
    stream = torch.randn(2, 6, 5, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    padded = torch.cat([3 * stream @ rotation + 1, torch.zeros(2, 6, 2, dtype=torch.float64)], dim=-1)
    as_map = stream.transpose(1, 2).reshape(2, 5, 2, 3)
    found = measures.stream_similarity([stream, padded, as_map])
    assert torch.allclose(found, torch.ones_like(found))
    assert measures.stream_similarity([stream, torch.randn(2, 6, 5).double()])[:, 0, 1].max() < 0.9


def test_outliers_by_hand():
    norms = torch.tensor([[1.0, 2, 3, 4, 10], [10.0, 20, 30, 40, 80], [1.0, 1, 1, 1, 1.01]])
    assert measures.outliers(norms).tolist() == [[False] * 4 + [True], [False] * 5, [False] * 5]
    assert measures.outliers(norms, factor=2.5).tolist() == [[False] * 4 + [True]] * 2 + [[False] * 5]
    by_mean = norms > 3 * norms.mean(-1, keepdim=True)
    by_batch = norms > 3 * norms.median()
    by_spread = norms > norms.mean(-1, keepdim=True) + 1.5 * norms.std(-1, keepdim=True)
    for wrong in (by_mean, by_batch, by_spread):
        assert not torch.equal(wrong, measures.outliers(norms))


def test_against_slow_loops():
    layers = random_matrices(3, 2)
    weights = layers[0]
    assert np.allclose(measures.entropy(weights), slow_entropy(weights))
    found = measures.mean_distance(weights, GRID, NUM_PREFIX, stride=STRIDE)
    assert np.allclose(found, slow_distance(weights, GRID, NUM_PREFIX, STRIDE))
    assert np.allclose(measures.mean_map(weights, GRID, NUM_PREFIX), slow_map(weights, GRID, NUM_PREFIX))
    assert np.allclose(measures.effective_rank(weights), slow_effective_rank(weights))
    assert np.allclose(measures.head_similarity(layers), slow_head_similarity(layers))
    streams = [torch.randn(2, 6, width, dtype=torch.float64) for width in (3, 5, 4)]
    assert np.allclose(measures.stream_similarity(streams), slow_cka(streams))
    norms = torch.rand(4, 9, dtype=torch.float64).exp() ** 4
    slow = [[norm > 3 * statistics.median(row) for norm in row] for row in norms.tolist()]
    assert measures.outliers(norms).tolist() == slow
    assert 0 < sum(map(sum, slow)) < 18


def slow_entropy(weights):
    return [
        [[-sum(w * math.log(w) for w in row) for row in matrix] for matrix in matrices] for matrices in weights.tolist()
    ]


def slow_distance(weights, grid, num_prefix, stride):
    places = [(y * stride[0], x * stride[1]) for y in range(grid[0]) for x in range(grid[1])]

    def one(matrix):
        reaches = []
        for query, here in enumerate(places):
            row = matrix[num_prefix + query][num_prefix:]
            reaches.append(sum(w * math.dist(here, there) for w, there in zip(row, places, strict=True)) / sum(row))
        return sum(reaches) / len(reaches)

    return [[one(matrix) for matrix in matrices] for matrices in weights.tolist()]


def slow_map(weights, grid, num_prefix):
    maps = np.zeros((len(weights), *grid))
    for b, matrices in enumerate(weights.tolist()):
        for y in range(grid[0]):
            for x in range(grid[1]):
                received = [row[num_prefix + y * grid[1] + x] for matrix in matrices for row in matrix]
                maps[b, y, x] = sum(received) / len(received) * weights.shape[-1]
    return maps


def slow_effective_rank(weights):
    def one(matrix):
        values = [math.sqrt(max(0.0, v)) for v in np.linalg.eigvalsh(np.array(matrix) @ np.array(matrix).T)]
        return math.exp(-sum(v / sum(values) * math.log(v / sum(values)) for v in values if v > 0))

    return [[one(matrix) for matrix in matrices] for matrices in weights.tolist()]


def slow_head_similarity(layers):
    def dot(a, b):
        return sum(x * y for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True))

    found = []
    for image in range(len(layers[0])):
        heads = [matrix for weights in layers for matrix in weights[image].tolist()]
        found.append([[dot(a, b) / math.sqrt(dot(a, a) * dot(b, b)) for b in heads] for a in heads])
    return found


def slow_cka(streams):
    """Through sums over pairs of channels of squared covariances."""

    def covariance(x, y):
        n = len(x)
        mean_x, mean_y = (sum(values) / n for values in (x, y))
        return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))

    def overlap(x, y):
        return sum(covariance(a, b) ** 2 for a in x for b in y)

    found = []
    for image in range(len(streams[0])):
        channels = [stream[image].T.tolist() for stream in streams]
        found.append([[overlap(a, b) / math.sqrt(overlap(a, a) * overlap(b, b)) for b in channels] for a in channels])
    return found


@torch.no_grad()
def test_a_recorded_model_with_uniform_attention():
    """Without queries and keys all weights are 1/17: 2 prefix tokens and 3×5 cells of 16 pixels."""
    model = small("vit_tiny_16", depth=2, dim=48, num_registers=1)
    for block in model.blocks:
        block.mixer.qkv.weight.zero_()
        block.mixer.qkv.bias.zero_()
    with vt.record(model) as trace:
        model(torch.randn(2, 3, 48, 80))
    places = [(16 * y, 16 * x) for y in range(3) for x in range(5)]
    distance = statistics.mean(math.dist(here, there) for here in places for there in places)
    for name, weights in trace.token_matrices().items():
        grid, num_prefix = trace[name].grid, trace[name].num_prefix
        found = measures.mean_distance(weights, grid, num_prefix, stride=trace.stride(name))
        assert torch.allclose(found, torch.full((2, 3), distance))
        assert torch.allclose(measures.entropy(weights), torch.full((2, 3, 17), math.log(17)))
        assert torch.allclose(measures.mean_map(weights, grid, num_prefix), torch.ones(2, 3, 5))
        assert torch.equal(measures.rank(weights), torch.ones(2, 3, dtype=torch.int64))


SMALL, LARGE = torch.full((1, 1, 4, 4), 1 / 4), torch.full((1, 1, 9, 9), 1 / 9)
BAD = [
    (lambda: measures.mean_map(SMALL, (2, 2), 1), "2×2 cells and 1 prefix tokens make 5 tokens, got 4; pass the grid"),
    (lambda: measures.mean_distance(LARGE, (2, 2), 0, stride=(1, 1)), "make 4 tokens, got 9"),
    (lambda: measures.head_similarity([SMALL, LARGE]), "the same tokens in all layers, got 4 and 9 tokens; select"),
    (lambda: measures.stream_similarity([SMALL[0], LARGE[0]]), "got 4 and 9 tokens"),
    (lambda: measures.layer_similarity([]), "needs at least one layer, got none"),
    (lambda: measures.rank(SMALL, 1.5), "tolerance is relative to .* got 1.5"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_strides_may_be_whole_numbers():
    even = torch.full((1, 1, 4, 4), 0.25)
    expected = 16 * (0 + 1 + 1 + 2**0.5) / 4
    assert measures.mean_distance(even, (2, 2), 0, stride=(16, 16)).item() == pytest.approx(expected, rel=1e-6)
