"""Spatial-reduction attention equals a loop over cells, queries and keys."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.attention import SelfAttention
from vitreous.layers.mixer import MixerContext
from vitreous.layers.reduction import ConvReduce, Reduction

DIM, HEADS = 12, 3
KINDS = {
    "ratio 1": Reduction(ratios=(1,)),
    "ratio 2": Reduction(),
    "ratio 4": Reduction(ratios=(4,)),
    "ratio 9": Reduction(ratios=(9,)),
    "pool": Reduction(method="pool", pooled_size=3),
    "pool 7": Reduction(method="pool"),
}
GRIDS = [(1, 1), (3, 5), (4, 8), (7, 10)]


def build(options, **context):
    made = options.build(MixerContext(**({"dim": DIM, "num_heads": HEADS, "grid": (4, 4)} | context)))
    return fill(made).double()


def convolved(reduce, cells):
    """Strided convolution as a loop over blocks, with zero padding."""
    height, width = cells.shape[:2]
    found = []
    for top, left in product(range(0, height, reduce.ratio), range(0, width, reduce.ratio)):
        token = reduce.conv.bias
        for y, x in product(range(reduce.ratio), repeat=2):
            if top + y < height and left + x < width:
                token = token + reduce.conv.weight[:, :, y, x] @ cells[top + y, left + x]
        found.append(reduce.norm(token))
    return found


def averaged(reduce, cells):
    """Adaptive average pooling as a loop over regions."""

    def cells_of(region, side):
        return range(region * side // reduce.size, math.ceil((region + 1) * side / reduce.size))

    found = []
    for row, column in product(range(reduce.size), repeat=2):
        inside = list(product(cells_of(row, cells.shape[0]), cells_of(column, cells.shape[1])))
        mean = sum(cells[y, x] for y, x in inside) / len(inside)
        found.append(F.gelu(reduce.norm(reduce.conv.weight[:, :, 0, 0] @ mean + reduce.conv.bias)))
    return found


def naive(mixer, tokens, grid, num_prefix):
    """One image (n, d): keys one at a time, then one query and one head at a time."""
    attention, reduce = mixer.attention, mixer.reduce
    prefix, cells = list(tokens[:num_prefix]), tokens[num_prefix:].unflatten(0, grid)
    if reduce is None:
        keys = list(tokens)
    else:
        keys = prefix + (convolved if isinstance(reduce, ConvReduce) else averaged)(reduce, cells)
    k, v = torch.stack([attention.kv(key) for key in keys]).unflatten(1, (2, HEADS, DIM // HEADS)).unbind(1)
    rows = []
    for token in tokens:
        query, answers = attention.q(token).unflatten(0, (HEADS, DIM // HEADS)), []
        for head in range(HEADS):
            shares = (k[:, head] @ query[head] / math.sqrt(DIM // HEADS)).exp()
            answers.append(shares @ v[:, head] / shares.sum())
        rows.append(attention.proj(torch.cat(answers)))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_prefix", [0, 2])
@pytest.mark.parametrize("grid", GRIDS)
@torch.no_grad()
def test_equals_the_loop(kind, num_prefix, grid):
    mixer = build(KINDS[kind], num_prefix=num_prefix)
    tokens = torch.randn(2, num_prefix + math.prod(grid), DIM, dtype=torch.float64)
    expected = torch.stack([naive(mixer, image, grid, num_prefix) for image in tokens])
    assert error(mixer(tokens, grid, num_prefix), expected) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_one_image_does_not_depend_on_its_batch(kind):
    mixer = build(KINDS[kind])
    tokens = torch.randn(3, 35, DIM, dtype=torch.float64)
    alone = mixer(tokens[:1], (5, 7))
    tokens[1:] *= 100
    assert error(mixer(tokens, (5, 7))[:1], alone) < 1e-10


@torch.no_grad()
def test_padded_equals_unpadded_where_the_ratio_divides():
    """Zero cells at the end of a map give the same keys as padding."""
    reduce = build(Reduction(ratios=(4,))).reduce
    cells = torch.randn(1, DIM, 7, 10, dtype=torch.float64)
    whole = F.pad(cells, (0, 2, 0, 1))
    expected = reduce.norm(reduce.conv(whole).permute(0, 2, 3, 1))
    assert torch.equal(reduce(cells), expected)
    assert torch.equal(reduce(whole), expected)


@torch.no_grad()
def test_no_cell_is_lost():
    mixer = build(Reduction(ratios=(4,)))
    tokens = torch.randn(1, 35, DIM, dtype=torch.float64)
    before = mixer(tokens, (5, 7))
    tokens[0, -1] += 1.0
    assert error(mixer(tokens, (5, 7))[:, 0], before[:, 0]) > 1e-3


@torch.no_grad()
def test_a_ratio_of_one_is_plain_attention():
    mixer, plain = (
        build(Reduction(ratios=(1,))),
        SelfAttention(MixerContext(dim=DIM, num_heads=HEADS, grid=(3, 5))).double(),
    )
    own = mixer.attention
    plain.qkv.weight.copy_(torch.cat([own.q.weight, own.kv.weight]))
    plain.qkv.bias.copy_(torch.cat([own.q.bias, own.kv.bias]))
    plain.proj.load_state_dict(own.proj.state_dict())
    tokens = torch.randn(2, 16, DIM, dtype=torch.float64)
    assert error(mixer(tokens, (3, 5), 1), plain(tokens, (3, 5), 1)) < 1e-10
    assert error(mixer(tokens, None, 1), plain(tokens, None, 1)) < 1e-10


def test_the_ratio_is_chosen_by_the_stage():
    options = Reduction(ratios=(8, 4, 1))
    made = [
        options.build(MixerContext(dim=DIM, num_heads=HEADS, grid=(4, 4), stage=stage)).reduce for stage in range(5)
    ]
    assert [reduce and reduce.ratio for reduce in made] == [8, 4, None, None, None]


@pytest.mark.parametrize(("options", "key_grid"), [(Reduction(), (3, 4)), (Reduction(method="pool"), (7, 7))])
def test_recorded_keys_are_on_the_reduced_grid(options, key_grid):
    model = vt.create_model("vit_tiny_16", mixer=options, depth=1, image_size=64).eval()
    with torch.no_grad(), vt.record(model) as trace:
        model(torch.randn(1, 3, 80, 112))
    seen = trace["blocks.0"]
    assert (seen.query_grid, seen.key_grid, seen.num_prefix) == ((5, 7), key_grid, 1)
    assert seen.weights.shape == (1, 3, 1 + 5 * 7, 1 + math.prod(key_grid))
    assert torch.allclose(seen.weights.sum(-1), torch.ones(()))


@pytest.mark.parametrize("mixer", ["reduction", Reduction(method="pool", pooled_size=2)])
def test_in_a_vit(mixer):
    model = fill(vt.create_model("vit_tiny_16", mixer=mixer, depth=2, image_size=64, num_classes=5))
    logits = model(torch.randn(2, 3, 57, 78))
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "relative"}, "its keys are on a coarser grid than its queries"),
        ({"position": "rope"}, "each of its keys covers several cells"),
        ({"token_drop_rate": 0.5}, "'reduction' does not support token_drop_rate"),
        ({"mixer": {"mixer": "reduction", "ratios": [0]}}, "each of ratios must be at least 1, got 0"),
        ({"mixer": {"mixer": "reduction", "method": "max"}}, "method must be one of conv, pool; got 'max'"),
        ({"mixer": {"mixer": "reduction", "ratio": 2}}, "has no option 'ratio'; did you mean 'ratios'"),
    ],
)
def test_unsupported_contexts_raise(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        vt.create_model("vit_tiny_16", **({"mixer": "reduction"} | options))
    assert "\n" not in str(caught.value)


def test_dropped_tokens_raise():
    with pytest.raises(ValueError, match="does not support dropped tokens"):
        build(Reduction())(torch.randn(1, 5, DIM, dtype=torch.float64), None)
