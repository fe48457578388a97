"""Local, dilated and block-sparse attention equal dense attention under a mask built cell by cell."""

import functools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.block_sparse import BlockSparse
from vitreous.layers.local import Dilated, Local
from vitreous.layers.mixer import MixerContext

GRIDS = [(1, 1), (3, 5), (7, 10), (16, 16), (1, 30), (9, 18)]


def local_sees(cell, other, grid, *, radius=2, dilation=1):
    return all(abs(a - b) <= radius * dilation and (a - b) % dilation == 0 for a, b in zip(cell, other, strict=True))


def dilated_sees(cell, other, grid):
    return local_sees(cell, other, grid, radius=2, dilation=3)


def scramble(number):
    for _ in range(2):
        number = ((number ^ (number >> 16)) * 0x45D9F3B) % 2**32
    return number ^ (number >> 16)


def block_sees(cell, other, grid, *, block=3, num_random=2, salt):
    """Neighboring blocks, or one of the block's random blocks."""
    (y, x), (v, w) = ((i // block, j // block) for i, j in (cell, other))
    if abs(y - v) <= 1 and abs(x - w) <= 1:
        return True
    rows, columns = (math.ceil(side / block) for side in grid)
    own = y * columns + x
    drawn = [scramble(own * num_random + draw + salt) % (rows * columns) for draw in range(num_random)]
    return v * columns + w in drawn


KINDS = {
    "local": (Local(radius=2), local_sees),
    "dilated": (Dilated(radius=2, dilation=3), dilated_sees),
    "block_sparse": (BlockSparse(block=3, num_random=2), block_sees),
}


def made(kind, **options):
    context = {"dim": 12, "num_heads": 3, "grid": (4, 4)} | options
    return fill(KINDS[kind][0].build(MixerContext(**context)))


def dense_mask(kind, mixer, grid, num_prefix):
    mask = cells_mask(kind, getattr(mixer, "salt", None), grid)
    return torch.nn.functional.pad(mask, (num_prefix, 0, num_prefix, 0), value=True)


@functools.cache
def cells_mask(kind, salt, grid):
    sees, extra = KINDS[kind][1], {} if salt is None else {"salt": salt}
    cells = [(y, x) for y in range(grid[0]) for x in range(grid[1])]
    return torch.tensor([[sees(cell, other, grid, **extra) for other in cells] for cell in cells])


def dense(mixer, x, mask, turn=lambda part: part):
    """Dense attention under a mask."""
    heads = [part.unflatten(2, (mixer.num_heads, -1)).transpose(1, 2) for part in mixer.qkv(x).chunk(3, dim=2)]
    q, k, v = turn(heads[0]), turn(heads[1]), heads[2]
    logits = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
    return mixer.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_prefix", [0, 2])
@pytest.mark.parametrize("grid", GRIDS)
def test_equals_dense_attention_under_a_mask_gradients_too(kind, num_prefix, grid):
    mixer = made(kind, num_prefix=num_prefix)
    x = torch.randn(2, num_prefix + grid[0] * grid[1], 12, requires_grad=True)
    expected = dense(mixer, x, dense_mask(kind, mixer, grid, num_prefix))
    actual = mixer(x, grid, num_prefix)
    assert error(actual, expected) < 1e-5
    probe = torch.randn_like(actual)
    gradients = [torch.autograd.grad((out * probe).sum(), [x, mixer.qkv.weight]) for out in (actual, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert error(ours, theirs) < 1e-5


@pytest.mark.parametrize("radius", [1, 4])
@pytest.mark.parametrize("dilation", [1, 2, 5])
@torch.no_grad()
def test_radius_and_dilation(radius, dilation):
    """Including phases with fewer cells than others, or none."""
    for grid in [(4, 19), (9, 35)]:
        mixer = fill(Dilated(radius=radius, dilation=dilation).build(MixerContext(dim=8, num_heads=1, grid=grid)))
        cells = [(y, x) for y in range(grid[0]) for x in range(grid[1])]
        mask = torch.tensor([[local_sees(a, b, grid, radius=radius, dilation=dilation) for b in cells] for a in cells])
        x = torch.randn(1, len(cells), 8)
        assert error(mixer(x, grid), dense(mixer, x, mask)) < 1e-5


@torch.no_grad()
def test_a_dilation_of_one_is_local():
    context, x = MixerContext(dim=12, num_heads=3, grid=(4, 4)), torch.randn(1, 130, 12)
    one, other = (fill(kind.build(context)) for kind in (Local(radius=2), Dilated(radius=2, dilation=1)))
    assert torch.equal(one(x, (10, 13)), other(x, (10, 13)))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_rotary_positions(kind):
    mixer = made(kind, position="rope", num_prefix=1)
    x = torch.randn(1, 1 + 7 * 10, 12)
    expected = dense(mixer, x, dense_mask(kind, mixer, (7, 10), 1), lambda part: mixer.rotary(part, (7, 10), 1))
    assert error(mixer(x, (7, 10), 1), expected) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_one_image_does_not_depend_on_its_batch(kind):
    mixer, x = made(kind, num_prefix=1), torch.randn(3, 1 + 7 * 10, 12)
    together = mixer(x, (7, 10), 1)
    x[1:] *= 100
    assert error(mixer(x, (7, 10), 1)[:1], together[:1]) < 1e-5
    assert error(mixer(x[:1], (7, 10), 1), together[:1]) < 1e-5


def products(mixer, side):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        mixer.to("meta")(torch.empty(1, side * side, 12), (side, side))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("kind", KINDS)
def test_products_grow_with_the_number_of_cells(kind):
    mixer = made(kind)
    small, large = products(mixer, 48), products(mixer, 96)
    assert large == 4 * small
    dense_products = 48**2 * (4 * 12**2 + 2 * 48**2 * 12)
    assert small < 0.15 * dense_products


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_than_dense_attention_on_a_small_grid(kind):
    assert products(made(kind), 3) <= 9 * (4 * 12**2 + 2 * 9 * 12) * (4 if kind == "block_sparse" else 1)


def test_random_blocks_differ_by_layer_and_by_seed_and_stay():
    def keys(seed, index):
        context = MixerContext(dim=12, num_heads=3, grid=(4, 4), index=index)
        return BlockSparse(seed=seed).build(context).groups((40, 40), torch.device("cpu")).keys

    assert torch.equal(keys(1, 0), keys(1, 0))
    assert not torch.equal(keys(1, 0), keys(1, 1))
    assert not torch.equal(keys(1, 0), keys(2, 0))


def test_random_blocks_are_spread_evenly():
    mixer = BlockSparse(block=1, num_random=4).build(MixerContext(dim=12, num_heads=3, grid=(4, 4)))
    seen, counts = mixer.attended_blocks((30, 30), torch.device("cpu"))
    drawn = seen[:, -4:].flatten().bincount(minlength=900)
    assert drawn.max() < 16
    assert (drawn == 0).float().mean().item() == pytest.approx(math.exp(-4), abs=0.02)
    assert counts[:, -4:].float().mean() > 0.97


@pytest.mark.parametrize("kind", KINDS)
def test_anywhere_in_a_vit(kind):
    model = fill(vt.create_model("vit_tiny_16", mixer=KINDS[kind][0], depth=2, image_size=64, num_classes=7))
    model(torch.randn(2, 3, 64, 80)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_recording_shows_cells_and_prefix_apart(kind):
    model = fill(vt.create_model("vit_tiny_16", mixer=KINDS[kind][0], depth=2, image_size=64, num_classes=7))
    images = torch.randn(2, 3, 64, 80)
    with vt.record(model) as trace:
        recorded = model(images)
    assert error(recorded, model(images)) < 1e-5
    assert trace["blocks.1.mixer.attend_prefix"].weights.shape == (2, 3, 1, 21)
    weights = trace["blocks.1.mixer"].weights
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


def test_dropout_in_training_only():
    mixer, x = made("local", attention_drop_rate=0.5), torch.randn(1, 15, 12)
    assert torch.equal(mixer(x, (3, 5)), mixer(x, (3, 5)))
    mixer.train()
    assert not torch.equal(mixer(x, (3, 5)), mixer(x, (3, 5)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "relative"}, r"position='relative' \(a bias for every pair of cells"),
        ({"drops_tokens": True}, "does not support token_drop_rate"),
        ({"num_heads": 5}, "dim must be a multiple of num_heads"),
    ],
)
def test_unsupported_contexts_raise(kind, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        made(kind, **options)
    assert "\n" not in str(caught.value)


def test_the_whole_grid_is_needed():
    with pytest.raises(ValueError, match="does not support dropped tokens"):
        made("local")(torch.randn(1, 9, 12), None)


@pytest.mark.parametrize("options", [{"radius": 0}, {"radius": 2, "dilation": 0}])
def test_radius_and_dilation_are_positive(options):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        Dilated(**options)
