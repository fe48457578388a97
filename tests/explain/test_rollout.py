"""Rollout and gradient rollout against values computed by hand, slow loops, and common wrong versions."""

import copy
import math
from functools import reduce

import numpy as np
import pytest
import torch

import vitreous as vt
from tests.family import small
from vitreous.explain.rollout import class_attention, gradient_rollout, gradient_weighted, relevance_map, rollout


def layer(*heads):
    return torch.tensor([heads], dtype=torch.float64)


def random_layers(count, *, tokens=7, heads=3):
    return list(torch.randn(count, 2, heads, tokens, tokens, dtype=torch.float64).softmax(-1))


# Two layers of one head. ½ (A + I) is ((¾, ¼, 0), (0, 1, 0), (0, ¼, ¾)) and ((½, 0, ½), (½, ½, 0), (0, ½, ½)); in
# their product, the second layer on the left, the first row is ½ (¾, ¼, 0) + ½ (0, ¼, ¾).
FIRST = layer([[0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5]])
SECOND = layer([[0, 0, 1], [1, 0, 0], [0, 1, 0]])
ROLLED = torch.tensor([[[0.375, 0.25, 0.375], [0.375, 0.625, 0], [0, 0.625, 0.375]]], dtype=torch.float64)
ROLLED_WITHOUT_RESIDUAL = torch.tensor([[[0, 0.5, 0.5], [0.5, 0.5, 0], [0, 1, 0]]], dtype=torch.float64)


def test_rollout_by_hand():
    assert torch.allclose(rollout([FIRST, SECOND]), ROLLED)
    assert torch.allclose(rollout([FIRST, SECOND], residual=False), ROLLED_WITHOUT_RESIDUAL)


def product_of(normalize, multiply):
    def wrong(layers):
        identity = torch.eye(3, dtype=torch.float64)
        return reduce(multiply, [normalize(matrix.mean(1) + identity) for matrix in layers])

    return wrong


def by_rows(a):
    return a / a.sum(-1, keepdim=True)


WRONG_ROLLOUTS = {
    "normalized along the queries": product_of(lambda a: a / a.sum(-2, keepdim=True), lambda r, a: a @ r),
    "not normalized": product_of(lambda a: a, lambda r, a: a @ r),
    "multiplied in the wrong order": product_of(by_rows, lambda r, a: r @ a),
    "multiplied cell by cell": product_of(by_rows, lambda r, a: a * r),
    "keys as rows": lambda layers: rollout(layers).transpose(-2, -1),
    "the residual left out": lambda layers: rollout(layers, residual=False),
    "the last layer alone": lambda layers: rollout(layers[-1:]),
}


@pytest.mark.parametrize("wrong", WRONG_ROLLOUTS.values(), ids=WRONG_ROLLOUTS)
def test_wrong_rollouts_are_seen(wrong):
    assert (wrong([FIRST, SECOND]) - ROLLED).abs().max() > 0.1


@pytest.mark.parametrize(("fusion", "row"), [("mean", [0.75, 0.25]), ("max", [2 / 3, 1 / 3]), ("min", [1, 0])])
def test_heads_are_fused_and_rows_sum_to_one_again(fusion, row):
    heads = layer([[1, 0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]])
    expected = torch.tensor([[row, [0.5, 0.5]]], dtype=torch.float64)
    assert torch.allclose(rollout([heads], fusion=fusion, residual=False), expected)
    identity = torch.eye(2, dtype=torch.float64)
    assert torch.allclose(rollout([heads], fusion=fusion), (expected + identity) / 2)


@pytest.mark.parametrize("residual", [True, False])
def test_a_token_with_an_empty_row_keeps_what_it_has(residual):
    heads = layer([[1, 0], [0, 1]], [[0, 1], [1, 0]])  # whose minimum is zero
    assert torch.equal(rollout([heads], fusion="min", residual=residual)[0], torch.eye(2, dtype=torch.float64))
    only_class = layer([[0.2, 0.3, 0.5], [0, 0, 0], [0, 0, 0]])
    found = rollout([only_class, only_class], residual=residual)[0, 0]
    kept = 0.6 if residual else 0.2  # by the class token, in each layer
    expected = torch.tensor([kept**2, (1 - kept**2) * 3 / 8, (1 - kept**2) * 5 / 8], dtype=torch.float64)
    assert torch.allclose(found, expected)


def test_discarding_takes_the_smallest_of_every_query():
    weights = layer([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]])
    half = [[0, 0, 3 / 7, 4 / 7], [4 / 7, 3 / 7, 0, 0], [0.97 / 0.98, 0, 0, 0.01 / 0.98], [0, 0, 0.5, 0.5]]
    found = rollout([weights], residual=False, discard=0.5)
    assert torch.allclose(found, torch.tensor([half], dtype=torch.float64))
    kept = rollout([weights], residual=False, discard=0.99)
    assert (kept > 0).sum(-1).tolist() == [[1, 1, 1, 1]]
    over_the_whole_matrix = torch.where(weights > weights.flatten().median(), weights, 0)
    assert (over_the_whole_matrix[0, 0, 3] == 0).all()  # a query with uniform attention would lose all weights


# Two layers of two heads. (∇A ⊙ A)⁺ of the first: ((1, 0), (1, 0)) and ((0, 1), (0, 0)), mean ((½, ½), (½, 0)), so
# that R = ((1½, ½), (½, 1)). Of the second: ((0, 2), (0, 0)) and zeros, mean ((0, 1), (0, 0)), which adds R's second
# row to its first.
WEIGHTS = [
    layer([[0.5, 0.5], [0.25, 0.75]], [[0.5, 0.5], [0.5, 0.5]]),
    layer([[0, 1], [0.5, 0.5]], [[1, 0], [0.5, 0.5]]),
]
GRADIENTS = [
    layer([[2, -4], [4, 0]], [[-2, 2], [0, 0]]),
    layer([[5, 2], [0, -2]], [[0, 3], [0, 0]]),
]
RELEVANCE = torch.tensor([[[2, 1.5], [0.5, 1]]], dtype=torch.float64)


def test_gradient_rollout_by_hand():
    assert torch.allclose(relevance(WEIGHTS, GRADIENTS), RELEVANCE)


def relevance(weights, gradients):
    return gradient_rollout(list(map(gradient_weighted, weights, gradients)))


def relevance_of(step, update):
    def wrong(weights, gradients):
        identity = torch.eye(2, dtype=torch.float64)
        return reduce(update, map(step, weights, gradients), identity)

    return wrong


def positive_mean(weights, gradient):
    return (gradient * weights).clamp(min=0).mean(1)


def add(r, a):
    return r + a @ r


WRONG_RELEVANCES = {
    "gradients in the order of the backward pass": lambda w, g: relevance(w, g[::-1]),
    "gradients of the layer before": lambda w, g: relevance(w, [g[0], *g[:-1]]),
    "layers from last to first": lambda w, g: relevance(w[::-1], g[::-1]),
    "heads averaged first": relevance_of(lambda w, g: (g * w).mean(1).clamp(min=0), add),
    "negative parts kept": relevance_of(lambda w, g: (g * w).mean(1), add),
    "absolute values": relevance_of(lambda w, g: (g * w).abs().mean(1), add),
    "gradients clamped alone": relevance_of(lambda w, g: g.clamp(min=0).mean(1), add),
    "multiplied on the wrong side": relevance_of(positive_mean, lambda r, a: r + r @ a),
    "without what was there": relevance_of(positive_mean, lambda r, a: a @ r),
}


@pytest.mark.parametrize("wrong", WRONG_RELEVANCES.values(), ids=WRONG_RELEVANCES)
def test_wrong_relevances_are_seen(wrong):
    assert (wrong(WEIGHTS, GRADIENTS) - RELEVANCE).abs().max() > 0.1


# Two prefix tokens and 2×3 cells; the class token, which stands first, gives 0.1 to itself and 0.2 to the other.
GRID, NUM_PREFIX = (2, 3), 2
CLASS_ROW = [0.1, 0.2, 0.05, 0.1, 0.15, 0.1, 0.2, 0.1]
CLASS_MAP = [[0.05, 0.1, 0.15], [0.1, 0.2, 0.1]]


def with_class_row():
    matrix = torch.full((8, 8), 1 / 8, dtype=torch.float64)
    matrix[0] = torch.tensor(CLASS_ROW)
    matrix[1] = torch.eye(8, dtype=torch.float64)[1]
    return matrix


def test_class_attention_by_hand():
    matrix = torch.stack([with_class_row(), torch.eye(8, dtype=torch.float64)])[None]
    found = class_attention(matrix, GRID, NUM_PREFIX)
    assert torch.allclose(found, torch.tensor([[CLASS_MAP, np.zeros((2, 3)).tolist()]], dtype=torch.float64))
    assert torch.allclose(relevance_map(matrix[:, 0], GRID, NUM_PREFIX), found[:, 0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda r: r[0, 1:7].reshape(GRID),
        lambda r: r[0, 2:].reshape(-1, math.isqrt(6)).reshape(GRID[::-1]).T,
        lambda r: r[2:, 0].reshape(GRID),
        lambda r: r[1, 2:].reshape(GRID),
        lambda r: r[:, 2:].mean(0).reshape(GRID),
        lambda r: r[2:, 2:].mean(0).reshape(GRID),
    ],
    ids=["one prefix token", "a square grid", "the class token's column", "second token", "all rows", "cells' rows"],
)
def test_wrong_class_maps_are_seen(wrong):
    assert (wrong(with_class_row()) - torch.tensor(CLASS_MAP)).abs().max() > 0.01


def test_without_a_class_token_the_cells_are_averaged():
    """The cells' rows of weights are (½, ½, 0, 0), (0, 1, 0, 0), (0, ½, ½, 0), (0, 0, 0, 1); the mean is over those."""
    matrix = torch.tensor([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]], dtype=torch.float64)
    expected = torch.tensor([[0.125, 0.5], [0.125, 0.25]], dtype=torch.float64)
    assert torch.allclose(class_attention(matrix[None, None], (2, 2), 0)[0, 0], expected)
    assert torch.allclose(relevance_map(matrix[None], (2, 2), 0)[0], expected)
    assert torch.allclose(relevance_map(matrix[None], (2, 2), 0, without_identity=True)[0], expected - 0.25)


def test_pooled_cells_are_averaged_despite_prefix_tokens():
    matrix = with_class_row()
    matrix[:2] = 0
    matrix[2:] = torch.arange(8) / 28
    found = class_attention(matrix[None, None], GRID, NUM_PREFIX, rows=slice(NUM_PREFIX, None))
    assert torch.allclose(found[0, 0], torch.arange(2, 8, dtype=torch.float64).reshape(GRID) / 28)
    assert (class_attention(matrix[None, None], GRID, NUM_PREFIX) == 0).all()


def test_the_identity_does_not_touch_a_class_tokens_map():
    matrix = with_class_row()[None]
    plain, without = (relevance_map(matrix, GRID, NUM_PREFIX, without_identity=choice) for choice in (False, True))
    assert torch.equal(plain, without)


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("discard", [0.0, 0.3, 0.8])
def test_rollout_against_slow_loops(fusion, residual, discard):
    layers = random_layers(4)
    found = rollout(layers, residual=residual, fusion=fusion, discard=discard)
    for image in range(2):
        slow = slow_rollout([matrix[image].tolist() for matrix in layers], residual, fusion, discard)
        assert np.allclose(found[image], slow)
    assert torch.allclose(found.sum(-1), torch.ones(2, 7, dtype=torch.float64))


def test_gradient_rollout_against_slow_loops():
    layers, gradients = random_layers(4), list(torch.randn(4, 2, 3, 7, 7, dtype=torch.float64))
    found = relevance(layers, gradients)
    for image in range(2):
        pairs = [(w[image].tolist(), g[image].tolist()) for w, g in zip(layers, gradients, strict=True)]
        assert np.allclose(found[image], slow_gradient_rollout(pairs))


def slow_product(a, b):
    n = len(a)
    return [[sum(a[i][k] * b[k][j] for k in range(n)) for j in range(n)] for i in range(n)]


def slow_identity(n):
    return [[float(i == j) for j in range(n)] for i in range(n)]


def slow_rollout(layers, residual=True, fusion="mean", discard=0.0):
    fuse = {"mean": lambda values: sum(values) / len(values), "max": max, "min": min}[fusion]
    n = len(layers[0][0])
    result = slow_identity(n)
    for heads in layers:
        step = []
        for i in range(n):
            row = [fuse([head[i][j] for head in heads]) for j in range(n)]
            for j in sorted(range(n), key=lambda j: row[j])[: int(discard * n)]:
                row[j] = 0.0
            row = [w / sum(row) for w in row]
            step.append([(w + (i == j)) / 2 for j, w in enumerate(row)] if residual else row)
        result = slow_product(step, result)
    return result


def slow_gradient_rollout(pairs):
    n = len(pairs[0][0][0])
    relevance = slow_identity(n)
    for heads, gradients in pairs:
        step = [
            [
                sum(max(0.0, g[i][j] * a[i][j]) for a, g in zip(heads, gradients, strict=True)) / len(heads)
                for j in range(n)
            ]
            for i in range(n)
        ]
        added = slow_product(step, relevance)
        relevance = [[relevance[i][j] + added[i][j] for j in range(n)] for i in range(n)]
    return relevance


class Explicit(torch.nn.Module):
    """Attention written out, independent of the recorder, that keeps its weights and their gradient."""

    def forward(self, q, k, v, **_):
        self.weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
        self.weights.retain_grad()
        return self.weights @ v


def test_a_recorded_model_against_attention_written_out():
    """Registers, a non-square image, and a different class for each of two images."""
    model = small("vit_tiny_16", depth=3, dim=48, num_registers=2).double()
    images, targets = torch.randn(2, 3, 48, 80, dtype=torch.float64), torch.tensor([3, 5])
    twin = copy.deepcopy(model)
    for block in twin.blocks:
        block.mixer.attend = Explicit()
    twin(images).gather(1, targets[:, None]).sum().backward()
    with vt.record(model, gradients=True) as trace:
        model(images).gather(1, targets[:, None]).sum().backward()
    attends = [block.mixer.attend for block in twin.blocks]
    for image in range(2):
        pairs = [(a.weights[image].tolist(), a.weights.grad[image].tolist()) for a in attends]
        found, flow = np.array(slow_gradient_rollout(pairs)), np.array(slow_rollout([w for w, _ in pairs]))
        assert np.allclose(trace.gradient_rollout()[image], found[0, 3:].reshape(3, 5))
        assert np.allclose(trace.rollout()[image], flow[0, 3:].reshape(3, 5))
        for (weights, _), found in zip(pairs, trace.class_attention().values(), strict=True):
            assert np.allclose(found[image], np.array(weights)[:, 0, 3:].reshape(-1, 3, 5))


@torch.no_grad()
def test_a_model_of_stages_rolls_out_stage_by_stage():
    model = small("swin_tiny", depths=(2, 2), dims=(24, 48), num_heads=(3, 6))
    images = torch.randn(1, 3, 64, 96)
    with vt.record(model) as trace:
        model(images)
    with pytest.raises(ValueError, match=r"the same tokens .* select the layers of one stage"):
        trace.rollout()
    with vt.record(model, ["blocks.2", "blocks.3"]) as trace:
        model(images)
    assert trace.rollout().shape == (1, 8, 12)
    assert trace.rollout().sum().item() == pytest.approx(1, abs=1e-5)


SMALL, LARGE = torch.full((1, 1, 4, 4), 1 / 4), torch.full((1, 1, 16, 16), 1 / 16)
BAD = [
    (lambda: rollout([LARGE, SMALL]), "rollout needs the same tokens in all layers, got 4 and 16 tokens; select the"),
    (lambda: gradient_rollout([LARGE, SMALL]), "got 4 and 16 tokens; select the layers of one stage"),
    (lambda: rollout([]), "rollout needs at least one layer, got none"),
    (lambda: rollout([SMALL], fusion="men"), "unknown fusion of heads 'men'; did you mean 'mean'"),
    (lambda: rollout([SMALL], discard=1.0), "discard is the fraction .* got 1.0"),
    (lambda: class_attention(SMALL, (2, 2), 1), "make 5 tokens, got 4"),
    (lambda: relevance_map(SMALL[0], (1, 2), 1), "1×2 cells and 1 prefix tokens make 3 tokens, got 4"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


MIXERS = ["attention", "window", "local", "dilated", "block_sparse", "reduction", "performer", "deformable"]


@pytest.mark.parametrize("mixer", [*MIXERS, "deformable_points"])
def test_products_are_laid_out_and_not_factors(mixer):
    """Where keys share cells, or cells a key, the product of sums is another number than the sum of products."""
    model = small("vit_tiny_16", depth=2, patch_size=8, mixer=mixer, class_token=False, pool="mean").double()
    images = torch.randn(2, 3, 56, 72, dtype=torch.float64)
    with vt.record(model, gradients=True) as trace:
        model(images)[:, 3].sum().backward()
    expected = torch.eye(63, dtype=torch.float64)
    for attention in trace.values():
        product = (attention.weights * attention.gradient).clamp(min=0)
        matrix = attention.layout.to_token_matrix(product)
        assert matrix.sum().item() <= product.sum().item() * (1 + 1e-6)  # padded queries and points outside are lost
        expected = expected + matrix.mean(1) @ expected
    found = trace.gradient_rollout()
    assert torch.allclose(found, (expected - torch.eye(63)).mean(1).reshape(2, 7, 9))
    if mixer in ("attention", "window", "local", "reduction", "performer"):
        each = [float((a.weights * a.gradient).clamp(min=0).sum()) for a in trace.values()]
        assert [float(layer.sum()) for layer in trace.gradient_weighted().values()] == pytest.approx(each, rel=1e-6)


def test_both_tokens_of_a_distilled_model_are_read():
    """With a zero class head the logits come from the distillation token alone."""
    model = small("deit_tiny_distilled_16", depth=1)
    torch.nn.init.zeros_(model.head.weight)
    with vt.record(model, gradients=True) as trace:
        model(torch.randn(2, 3, 64, 64))[:, 3].sum().backward()
    assert (trace.gradient_rollout() > 0).any()
    weights = trace["blocks.0"].weights[:, :, :2, 2:].mean(2).reshape(2, 3, 4, 4)
    assert torch.allclose(trace.class_attention()["blocks.0"], weights)
