"""Window attention equals a loop over pairs of cells on any grid, and padding has no effect."""

import math

import pytest
import torch

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.mixer import MixerContext
from vitreous.layers.window import Window

DIM, HEADS, SIZE = 24, 3, 4


def make(shifted=False, num_prefix=0, **options):
    context = MixerContext(dim=DIM, num_heads=HEADS, grid=(8, 8), num_prefix=num_prefix, index=int(shifted))
    return fill(Window(size=SIZE, **options).build(context)).double()


def tokens_for(grid, num_prefix=0, batch=1):
    return torch.randn(batch, num_prefix + grid[0] * grid[1], DIM, dtype=torch.float64)


def window_of(place, side, shifted):
    """Index of the window that contains a row or column; the first shifted window is -1."""
    return (place - SIZE // 2) // SIZE if shifted and side > SIZE else place // SIZE


def bias_between(mixer, query, key, grid, shifted):
    """Bias of a pair: -inf for cells in different windows, 0 for prefix tokens (None)."""
    if query is None or key is None:
        return torch.zeros(HEADS, dtype=torch.float64)
    for axis in (0, 1):
        if window_of(query[axis], grid[axis], shifted) != window_of(key[axis], grid[axis], shifted):
            return torch.full((HEADS,), -math.inf, dtype=torch.float64)
    down, right = query[0] - key[0] + SIZE - 1, query[1] - key[1] + SIZE - 1
    return mixer.relative.table[0, down * (2 * SIZE - 1) + right]


@torch.no_grad()
def naive(mixer, x, grid, num_prefix, shifted):
    """One query and one key at a time, over the whole image."""
    places = [None] * num_prefix + [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    q, k, v = mixer.qkv(x[0]).unflatten(1, (3, HEADS, -1)).unbind(1)
    rows = []
    for i, query in enumerate(places):
        bias = torch.stack([bias_between(mixer, query, key, grid, shifted) for key in places])
        logits = (q[i] * k).sum(-1) / math.sqrt(DIM // HEADS) + bias
        rows.append((logits.softmax(0)[:, :, None] * v).sum(0).flatten())
    return mixer.proj(torch.stack(rows))[None]


@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (8, 12), (7, 10), (9, 2), (5, 4)])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("num_prefix", [0, 2])
def test_equals_the_loop(grid, shifted, num_prefix):
    mixer, x = make(shifted, num_prefix), tokens_for(grid, num_prefix)
    with torch.no_grad():
        assert error(mixer(x, grid, num_prefix), naive(mixer, x, grid, num_prefix, shifted)) < 1e-12


@pytest.mark.parametrize("shifted", [False, True])
@torch.no_grad()
def test_a_padded_map_is_the_part_of_a_larger_one_that_needs_no_padding(shifted):
    """A map of 7×10 cells within one of 8×12: windows inside both give the same output."""
    mixer, larger = make(shifted), tokens_for((8, 12))
    smaller = larger.unflatten(1, (8, 12))[:, :7, :10]
    outputs = mixer(larger, (8, 12)).unflatten(1, (8, 12)), mixer(smaller.flatten(1, 2), (7, 10)).unflatten(1, (7, 10))
    whole = (slice(None), slice(6 if shifted else 4), slice(10 if shifted else 8))
    assert error(outputs[1][whole], outputs[0][whole]) < 1e-12
    assert error(outputs[1][:, -1, -1], outputs[0][:, 6, 9]) > 1e-2


@torch.no_grad()
def test_shifting_connects_neighboring_windows():
    grid, x = (8, 8), tokens_for((8, 8))
    changed = x.clone()
    changed[0, 3 * 8 + 3] += 1
    for shifted, reach in ((False, range(4)), (True, range(2, 6))):
        mixer = make(shifted)
        moved = (mixer(changed, grid) - mixer(x, grid)).abs().amax(-1).unflatten(1, grid)[0]
        assert {(y, x) for y, x in (moved > 0).nonzero().tolist()} == {(y, x) for y in reach for x in reach}


@torch.no_grad()
def test_never_shifted():
    x = tokens_for((8, 8))
    assert torch.equal(make(True, shift="never")(x, (8, 8)), make(False)(x, (8, 8)))


@pytest.mark.parametrize("num_prefix", [0, 1])
@torch.no_grad()
def test_one_image_does_not_depend_on_its_batch(num_prefix):
    mixer, x = make(True, num_prefix), tokens_for((7, 10), num_prefix, batch=3)
    together = mixer(x, (7, 10), num_prefix)
    assert error(torch.cat([mixer(one[None], (7, 10), num_prefix) for one in x]), together) < 1e-12


def test_the_cost_grows_with_the_number_of_cells():
    options = {"mixer": Window(size=4), "depth": 2, "class_token": False, "pool": "mean"}
    macs = [vt.cost("vit_tiny_16", size, **options).parts["mixer"].macs for size in (128, 256, 512)]
    assert macs[2] == 4 * macs[1] == 16 * macs[0]


@pytest.mark.parametrize("options", [{}, {"class_token": False}, {"position": "relative", "num_registers": 2}])
def test_in_a_vit(options):
    options = {"mixer": Window(size=3), "depth": 2, "image_size": 64, "num_classes": 5, "pool": "mean", **options}
    model = fill(vt.create_model("vit_tiny_16", **options))
    model(torch.randn(2, 3, 64, 90)).square().sum().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]


def test_recording_shows_the_windows():
    model = vt.create_model("swin_tiny", mixer=Window(size=4), depths=(2, 1, 1, 1), image_size=64).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad(), vt.record(model) as trace:
        output = model(images)
    with torch.no_grad():
        assert error(output, model(images)) < 1e-5
    assert trace["blocks.1"].weights.shape == (2, 3, 16, 16, 16)
    assert torch.allclose(trace["blocks.1"].weights.sum(-1), torch.ones(()))


BAD = [
    (lambda: vt.create_model("vit_tiny_16", mixer="window", position="rope"), "it has its own relative position bias"),
    (lambda: vt.create_model("vit_tiny_16", mixer="window", token_drop_rate=0.5), "does not support token_drop_rate"),
    (lambda: Window(size=0), "size must be at least 1, got 0"),
    (lambda: Window(shift="alternately"), "did you mean 'alternate'"),
    (lambda: make()(tokens_for((4, 4)), None), "windows need the whole grid"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_unsupported_contexts_raise(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
