"""Layouts of cross-attention and merged tokens: weights are mapped exactly, and mismatches raise with both sizes."""

import pytest
import torch
from torch.nn.functional import one_hot

from tests.parity import error, fill
from vitreous.layers.attention import CrossAttention
from vitreous.layers.layout import CellGroups, Channels, Grouped, Layout, Points
from vitreous.layers.tokens import Tokens

QUERIES = Tokens(None, 100, "queries")
TEXT = Tokens(None, 7, "text")
IMAGE = Tokens((7, 7))


def weights_of(*shape):
    return torch.rand(*shape, dtype=torch.float64).softmax(-1)


def test_object_queries_keep_every_row():
    weights = weights_of(1, 3, 100, 49)
    layout = Layout(QUERIES, IMAGE)
    assert torch.equal(layout.onto_keys(weights), weights.reshape(1, 3, 100, 7, 7))
    with pytest.raises(ValueError, match=r"100 queries tokens attend to 7×7 image cells, .*onto_keys"):
        layout.to_token_matrix(weights)
    assert not layout.within_image


def test_text_over_cells_leaves_the_prefix_out_of_the_map():
    weights = weights_of(2, 3, 7, 1 + 6)
    maps = Layout(TEXT, Tokens((2, 3), 1)).onto_keys(weights)
    for word in range(7):
        for cell in range(6):
            assert torch.equal(maps[:, :, word, cell // 3, cell % 3], weights[:, :, word, 1 + cell])


def test_camera_views_are_consecutive():
    weights = weights_of(2, 3, 100, 2 * 12)
    maps = Layout(QUERIES, Tokens((3, 4), source="cameras", views=2)).onto_keys(weights)
    assert maps.shape == (2, 3, 100, 2, 3, 4)
    assert torch.equal(maps[:, :, 5, 1, 2, 3], weights[:, :, 5, 12 + 2 * 4 + 3])


def test_several_views_have_no_token_matrix():
    cameras = Tokens((3, 4), source="cameras", views=2)
    assert Layout(cameras, cameras).onto_keys(weights_of(1, 1, 24, 24)).shape == (1, 1, 24, 2, 3, 4)
    with pytest.raises(ValueError, match="2 views"):
        Layout(cameras, cameras).to_token_matrix(weights_of(1, 1, 24, 24))


#: Six cells merged into three tokens, per image; the third cell of the last image is dropped.
TOKEN_OF_CELL = torch.tensor([[0, 0, 1, 2, 2, 2], [2, 1, 1, 0, 1, 0], [0, 1, -1, 1, 2, 0]])


def naive_merged(weights, token_of_cell, num_prefix):
    """Token matrix, one pair at a time, with cells looked up in their merged tokens."""
    batch, heads = weights.shape[:2]
    num_tokens = num_prefix + token_of_cell.shape[1]
    whole = torch.zeros(batch, heads, num_tokens, num_tokens, dtype=weights.dtype)
    for image in range(batch):
        owners = token_of_cell[image if len(token_of_cell) > 1 else 0].tolist()
        tokens = [*range(num_prefix), *(num_prefix + owner if owner >= 0 else None for owner in owners)]
        for i, query in enumerate(tokens):
            for j, key in enumerate(tokens):
                if query is not None and key is not None:
                    whole[image, :, i, j] = weights[image, :, query, key] / tokens.count(key)
    return whole


@pytest.mark.parametrize("num_prefix", [0, 2])
@pytest.mark.parametrize("token_of_cell", [TOKEN_OF_CELL, TOKEN_OF_CELL[2:]])
def test_merged_cells_equal_the_loop(token_of_cell, num_prefix):
    weights = weights_of(3, 2, num_prefix + 3, num_prefix + 3)
    merged = Tokens((2, 3), num_prefix, token_of_cell=token_of_cell)
    expected = naive_merged(weights, token_of_cell, num_prefix)
    whole = Layout(merged, merged).to_token_matrix(weights)
    assert torch.allclose(whole, expected)
    sums = whole.sum(-1)
    assert torch.allclose(sums[sums > 0], sums.new_ones(()))
    maps = Layout(merged, merged).onto_keys(weights)
    assert torch.equal(maps, whole[..., num_prefix:].unflatten(-1, (2, 3)))


def test_one_token_per_cell_equals_no_merging():
    cells = Tokens((2, 3), 1)
    merged = cells._replace(token_of_cell=torch.arange(6)[None])
    weights = weights_of(2, 3, 7, 7)
    assert torch.equal(Layout(merged, merged).to_token_matrix(weights), Layout(cells, cells).to_token_matrix(weights))


def test_merged_weights_times_the_cells_is_the_merged_weights_times_their_means():
    """The value of a merged token is the mean of its cells, so the layout is exact."""
    values = torch.randn(3, 2, 6, 4, dtype=torch.float64)
    share = one_hot(TOKEN_OF_CELL[:2], 3).double()
    means = torch.einsum("bct,bhck->bhtk", share / share.sum(1, keepdim=True), values[:2])
    weights = weights_of(2, 2, 100, 3)
    maps = Layout(QUERIES, Tokens((2, 3), token_of_cell=TOKEN_OF_CELL[:2])).onto_keys(weights)
    assert error(torch.einsum("bhqc,bhck->bhqk", maps.flatten(-2), values[:2]), weights @ means) < 1e-12


def test_fewer_prefix_queries_than_prefix_keys():
    weights = weights_of(1, 2, 1, 3 + 6)
    whole = Layout(Tokens(None, 1), Tokens((2, 3), 3)).to_token_matrix(weights)
    assert torch.equal(whole[:, :, :1], weights)
    assert whole.shape == (1, 2, 9, 9)
    assert not whole[:, :, 1:].any()


def test_layouts_are_values():
    assert Layout(QUERIES, IMAGE) == Layout(Tokens(None, 100, "queries"), Tokens((7, 7)))
    assert len({Layout(QUERIES, IMAGE), Layout(QUERIES, IMAGE), Layout(TEXT, IMAGE)}) == 2


FOUR = Tokens((2, 2))
ALL_IN_ONE = Tokens((2, 2), token_of_cell=torch.zeros(1, 4, dtype=torch.long))


def grouped(keys, positions, grid=(2, 2), num_prefix=0):
    class Groups:
        def cell_groups(self):
            return CellGroups(torch.zeros(keys, dtype=torch.long), torch.zeros(positions, dtype=torch.long))

    return Grouped(grid, Groups(), num_prefix)


REFUSED = [
    (
        lambda: Layout(Tokens(None, 100), IMAGE).to_token_matrix(weights_of(1, 3, 100, 49)),
        "100 prefix tokens .*7×7 image cells",
    ),
    (
        lambda: Layout(Tokens(None, 1), Tokens((7, 7), 1)).to_token_matrix(weights_of(1, 1, 9, 50)),
        "9 queries, .* 1 prefix token",
    ),
    (
        lambda: Layout(IMAGE, IMAGE).to_token_matrix(weights_of(1, 3, 100, 49)),
        r"100 queries, .* 7×7 image cells \(49\)",
    ),
    (lambda: Layout(IMAGE, IMAGE).to_token_matrix(weights_of(1, 3, 49, 50)), r"50 keys, .* 7×7 image cells \(49\)"),
    (lambda: Layout(QUERIES, IMAGE).onto_keys(weights_of(1, 3, 99, 49)), r"99 queries, .* 100 queries tokens"),
    (lambda: Layout(QUERIES, IMAGE).onto_keys(weights_of(1, 3, 100, 48)), "48 keys"),
    (lambda: Layout(QUERIES, IMAGE._replace(views=2)).onto_keys(weights_of(1, 3, 100, 49)), r"2 views .*\(98\)"),
    (lambda: Layout(IMAGE, TEXT).onto_keys(weights_of(1, 3, 49, 7)), "text tokens have no grid"),
    (lambda: Layout(TEXT, TEXT).to_token_matrix(weights_of(1, 3, 7, 7)), "text tokens have no grid"),
    (
        lambda: Layout(Tokens((2, 2), 1), FOUR).to_token_matrix(weights_of(1, 1, 5, 4)),
        "1 prefix token .* 0 prefix tokens",
    ),
    (lambda: Layout(FOUR, Tokens((2, 3)), (1, 1)).to_token_matrix(weights_of(1, 1, 4, 6)), "2×3 regions .* 2×2 cells"),
    (
        lambda: Layout(FOUR, ALL_IN_ONE).to_token_matrix(weights_of(1, 1, 4, 2)),
        "2 keys, .* 4 cells merged into 1 token",
    ),
    (lambda: Layout(FOUR, ALL_IN_ONE).to_token_matrix(weights_of(3, 1, 4, 0)), "0 keys, .* merged into 1 token"),
    (
        lambda: Layout(FOUR, ALL_IN_ONE._replace(token_of_cell=torch.zeros(2, 4).long())).to_token_matrix(
            weights_of(3, 1, 4, 1)
        ),
        "for 2 images, .*3",
    ),
    (
        lambda: Layout(FOUR, ALL_IN_ONE._replace(token_of_cell=torch.zeros(1, 5).long())).to_token_matrix(
            weights_of(1, 1, 4, 1)
        ),
        "token_of_cell has 5 cells, .* 4",
    ),
    (
        lambda: Layout(FOUR, ALL_IN_ONE._replace(token_of_cell=torch.tensor([[0, 0, 2, 2]]))).to_token_matrix(
            weights_of(1, 1, 4, 3)
        ),
        "no cell in token 1 ",
    ),
    (
        lambda: Points((2, 2), torch.zeros(1, 1, 1, 3, 2)).to_token_matrix(weights_of(1, 1, 100, 3)),
        "100 queries, .*2×2",
    ),
    (lambda: Points((2, 2), torch.zeros(1, 1, 1, 3, 2)).to_token_matrix(weights_of(1, 1, 4, 5)), "5 keys, .*3 points"),
    (
        lambda: Points((2, 2), torch.zeros(1, 1, 9, 3, 2)).to_token_matrix(weights_of(1, 1, 4, 3)),
        "points of 9 queries, .*4",
    ),
    (
        lambda: Points((2, 2), torch.zeros(1, 1, 100, 3, 2), QUERIES).to_token_matrix(weights_of(1, 1, 100, 3)),
        "100 queries tokens attend to 2×2 image cells",
    ),
    (lambda: grouped((2, 2), 4).unfold(weights_of(5, 1, 2, 2)), "5 groups .* multiple of 2"),
    (lambda: grouped((2, 2), 4).to_token_matrix(weights_of(1, 1, 3, 2, 2)), "3 groups, .* 2"),
    (lambda: grouped((2, 2), 4).to_token_matrix(weights_of(1, 1, 2, 2, 3)), "3 keys .* 2"),
    (lambda: grouped((2, 2), 5).to_token_matrix(weights_of(1, 1, 2, 2, 2)), "5 cells, .* 2×2"),
    (lambda: Channels((2, 2)).onto_keys(weights_of(1, 1, 4, 4)), "channels attend to channels"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_mismatches_raise_with_both_sizes(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_points_of_object_queries_map_to_the_keys_grid():
    points = torch.rand(2, 3, 100, 4, 2, dtype=torch.float64)
    weights = weights_of(2, 3, 100, 4)
    maps = Points((5, 6), points, QUERIES).onto_keys(weights)
    alone = Points((5, 6), points[:, :, 7:8], Tokens(None, 1, "queries")).onto_keys(weights[:, :, 7:8])
    assert maps.shape == (2, 3, 100, 5, 6)
    assert torch.allclose(maps[:, :, 7], alone[:, :, 0])


def test_cross_attention_without_a_layout():
    attention, seen = fill(CrossAttention(12, 3)), []
    attention.attend.register_forward_pre_hook(
        lambda _, args, options: seen.append(options["layout"]), with_kwargs=True
    )
    x, context = torch.randn(2, 5, 12), torch.randn(2, 8, 12)
    attention(x, context)
    attention(x, x)
    attention(x, context, layout=Layout(Tokens(None, 5, "text"), Tokens((2, 4))))
    assert seen[0] == Layout(Tokens(None, 5, "queries"), Tokens(None, 8, "context"))
    assert seen[1] == Layout(Tokens(None, 5, "queries"), Tokens(None, 5, "queries"))
    assert seen[2].keys.grid == (2, 4)
