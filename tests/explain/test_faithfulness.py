"""Deletion and insertion curves by hand on a linear model, and verdicts that separate good maps from bad ones."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vitreous as vt
from tests.explain.toy import toy
from tests.shared import DEIT_TINY, class_of, golden_images, need_shared
from vitreous.explain.attribution import METHODS
from vitreous.explain.faithfulness import (
    FaithfulnessTable,
    auc,
    bootstrap,
    cell_means,
    cell_of,
    cell_size,
    compare_methods,
    deletion,
    insertion,
    pointing,
    summarize,
)
from vitreous.explain.score import class_score

ONE = class_score(torch.tensor([1]))
WEIGHTS = [2.0, 1.0, -1.0, 0.5]
HEAT = torch.tensor(WEIGHTS).reshape(1, 2, 2)


def sigmoids(*totals):
    return torch.tensor([totals]).sigmoid()


def four_cells():
    return toy(WEIGHTS, (4, 4)), torch.ones(1, 1, 4, 4)


def test_deletion_by_hand():
    """What is left of 2 + 1 − 1 + ½ when cells go in the order 2, 1, ½, −1."""
    model, images = four_cells()
    curve = deletion(model, images, ONE, HEAT, steps=4, baseline="gray")
    assert torch.allclose(curve, sigmoids(2.5, 0.5, -0.5, -1.0, 0.0))
    assert torch.allclose(curve, torch.tensor([[0.9241, 0.6225, 0.3775, 0.2689, 0.5]]), atol=1e-4)
    wrong_way = deletion(model, images, ONE, -HEAT, steps=4, baseline="gray")
    assert torch.allclose(wrong_way, sigmoids(2.5, 3.5, 3.0, 2.0, 0.0))


def test_insertion_by_hand():
    model, images = four_cells()
    curve = insertion(model, images, ONE, HEAT, steps=4, baseline="gray")
    assert torch.allclose(curve, sigmoids(0.0, 2.0, 3.0, 3.5, 2.5))


def test_curves_plot_the_probability_of_the_target():
    model, images = four_cells()
    one, zero = (
        deletion(model, images, class_score(torch.tensor([t])), HEAT, steps=4, baseline="gray") for t in (1, 0)
    )
    assert torch.allclose(zero, 1 - one)


def test_steps_change_equal_shares_of_the_cells():
    model, images = four_cells()
    half = deletion(model, images, ONE, HEAT, steps=2, baseline="gray")
    assert torch.allclose(half, sigmoids(2.5, -0.5, 0.0))


def test_no_order_is_better_than_that_of_the_weights():
    model, images = four_cells()
    orders = torch.tensor(list(itertools.permutations([4.0, 3.0, 2.0, 1.0]))).reshape(24, 2, 2)
    images, score = images.expand(24, -1, -1, -1), class_score(torch.ones(24, dtype=torch.long))
    falling = auc(deletion(model, images, score, orders, steps=4, baseline="gray"))
    rising = auc(insertion(model, images, score, orders, steps=4, baseline="gray"))
    ideal = int((orders.flatten(1) == torch.tensor([4.0, 3.0, 1.0, 2.0])).all(dim=1).nonzero())
    assert falling.argmin() == ideal
    assert rising.argmax() == ideal


def test_batches_change_nothing():
    model = toy(torch.randn(6).tolist(), (4, 6))
    images, targets, heat = torch.randn(5, 1, 4, 6), torch.tensor([0, 1, 1, 0, 1]), torch.rand(5, 2, 3)
    curves = [deletion(model, images, class_score(targets), heat, steps=3, batch_size=size) for size in (2, 64)]
    assert torch.allclose(*curves)
    alone = [
        deletion(model, images[i : i + 1], class_score(targets[i : i + 1]), heat[i : i + 1], steps=3) for i in range(5)
    ]
    assert torch.allclose(curves[0], torch.cat(alone))


def test_blur_keeps_broad_colors_and_gray_keeps_nothing():
    """Stripes of one pixel vanish, a half that is brighter stays; so a dark image is not hidden by brightness."""
    model = toy([1.0] * 64, (16, 16))
    stripes = torch.ones(1, 1, 16, 16)
    stripes[:, :, ::2] = -1
    heat = torch.rand(1, 8, 8)
    ends = {
        (name, base): deletion(model, shown, ONE, heat, steps=1, baseline=base)[0, 1].logit().item()
        for name, shown in (("stripes", stripes), ("bright", stripes + 0.1))
        for base in ("blur", "gray")
    }
    assert ends["stripes", "blur"] == pytest.approx(0.0, abs=1e-4)
    assert ends["bright", "blur"] == pytest.approx(6.4, abs=1e-2)
    assert ends["bright", "gray"] == 0.0


def test_auc_by_hand():
    curves = torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.0, 1.0, 1.0]])
    assert auc(curves).tolist() == [0.5, 0.25, 0.5, 0.75]


def test_pointing_by_hand():
    """The center of the hottest cell counts: not its corner, and not the transposed one."""
    heat = torch.tensor([[0.1, 0.2, 0.9], [0.3, 0.4, 0.5]]).expand(4, -1, -1)
    masks = torch.zeros(4, 8, 12, dtype=torch.bool)
    masks[0, 1:4, 9:12] = True  # around the center (2, 10)
    masks[1, 0, 8] = True  # the cell's corner alone
    masks[2, 4:, :4] = True  # the cell below and left
    masks[3] = True
    assert pointing(heat, masks).tolist() == [True, False, False, True]


def test_pointing_with_a_heat_of_pixels():
    heat, masks = torch.zeros(2, 5, 7), torch.zeros(2, 5, 7, dtype=torch.bool)
    heat[:, 4, 6], masks[0, 4, 6], masks[1, 4, 5] = 1, True, True
    assert pointing(heat, masks).tolist() == [True, False]


def test_cells_of_odd_images_are_cut_off():
    assert cell_of((3, 5), (2, 2)).tolist() == [[0, 0, 1, 1, 2], [0, 0, 1, 1, 2], [3, 3, 4, 4, 5]]
    heat = torch.arange(15.0).reshape(1, 3, 5)
    assert cell_means(heat, (3, 5), (2, 2)).tolist() == [[[3.0, 5.0, 6.5], [10.5, 12.5, 14.0]]]


def test_fine_and_coarse_maps_are_compared_on_the_same_cells():
    model, images = four_cells()
    pixels = HEAT.repeat_interleave(2, 1).repeat_interleave(2, 2) + torch.tensor([[0.9, -0.9], [-0.9, 0.9]]).tile(2, 2)
    assert torch.allclose(cell_means(pixels, (4, 4), (2, 2)), HEAT, atol=1e-6)
    curves = [deletion(model, images, ONE, heat, steps=4) for heat in (HEAT, pixels)]
    assert torch.allclose(*curves)


PYRAMID, VIT = ((4, 4), (8, 8), (16, 16), (32, 32)), ((16, 16),)
CELLS = [
    (PYRAMID, (224, 224), (32, 32)),
    (PYRAMID, (64, 64), (8, 8)),
    (PYRAMID, (224, 96), (8, 8)),
    (PYRAMID, (20, 20), (4, 4)),
    (VIT, (224, 224), (16, 16)),
    (VIT, (64, 64), (16, 16)),
]


@pytest.mark.parametrize(("strides", "size", "cell"), CELLS)
def test_cells_are_the_coarsest_that_are_many_enough(strides, size, cell):
    assert cell_size(SimpleNamespace(strides=strides), size) == cell


def test_intervals():
    values = np.random.default_rng(5).normal(3.0, 2.0, 400)
    estimate = bootstrap(values, seed=1)
    assert estimate == bootstrap(values, seed=1)
    assert estimate != bootstrap(values, seed=2)
    assert estimate.mean == values.mean()
    margin = 1.96 * values.std() / 20
    assert estimate.mean - estimate.low == pytest.approx(margin, rel=0.1)
    assert estimate.high - estimate.mean == pytest.approx(margin, rel=0.1)


def perfect(model, images, score):
    """What each cell adds to the score; of the first class, whose logit is always 0, the opposite."""
    cells = model.features(images).maps[0].values[:, 0]
    return cells * model.weights.detach().reshape(cells.shape[1:]) * (2 * score.targets - 1)[:, None, None]


def inverted(model, images, score):
    return -perfect(model, images, score)


def measured_table(number=20, **options):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(16, generator=generator)
    images = torch.rand(number, 1, 8, 8, generator=generator) + 0.5
    targets = torch.randint(0, 2, (number,), generator=generator)
    methods = {"perfect": perfect, "inverted": inverted, "idle": METHODS["random"], "occlusion": METHODS["occlusion"]}
    model, score = toy(weights.tolist(), (8, 8)), class_score(targets)
    return compare_methods(model, images, score, methods=methods, **{"baseline": "gray"} | options)


def test_good_maps_are_better_than_random_and_bad_ones_worse():
    table = measured_table()
    for measure in ("deletion", "insertion", "faithfulness"):
        verdicts = {name: table.verdict(name, measure) for name in table.values}
        assert verdicts == {
            "perfect": "better than random",
            "inverted": "worse than random",
            "idle": "no better than random",
            "occlusion": "better than random",
            "random": "no better than random",
        }
    assert (
        table.paired_difference("perfect", measure="deletion").high
        < 0
        < table.paired_difference("perfect", measure="insertion").low
    )
    assert table.mean("perfect").mean >= table.mean("occlusion").mean
    summary = summarize(table)
    assert summary.startswith("On these 20 images perfect")
    assert "No better than random: idle. Worse than random: inverted." in summary


def test_faithfulness_is_the_area_between_the_curves_of_every_image():
    images, score = torch.rand(3, 1, 4, 4) + 0.5, class_score(torch.tensor([1, 0, 1]))
    model, heat = toy(WEIGHTS, (4, 4)), torch.rand(3, 2, 2)
    values = compare_methods(model, images, score, methods={"given": lambda *_: heat}, steps=3).values
    falling, rising = (auc(curve(model, images, score, heat, steps=3)).numpy() for curve in (deletion, insertion))
    assert np.allclose(values["given"]["deletion"], falling)
    assert np.allclose(values["given"]["insertion"], rising)
    for measured in values.values():
        assert np.allclose(measured["faithfulness"], measured["insertion"] - measured["deletion"])


def test_scores_do_not_depend_on_the_batches():
    some, all_at_once = (measured_table(number=5, batch_size=size).values["perfect"] for size in (2, 16))
    assert np.allclose(some["deletion"], all_at_once["deletion"])


def test_results_depend_only_on_the_seed():
    before = torch.get_rng_state()
    first, again, other = measured_table(seed=1), measured_table(seed=1), measured_table(seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.to_json() == again.to_json()
    assert not np.array_equal(first.values["random"]["deletion"], other.values["random"]["deletion"])
    assert np.array_equal(first.values["perfect"]["deletion"], other.values["perfect"]["deletion"])


def test_masks_add_the_pointing_game():
    masks = torch.zeros(20, 8, 8, dtype=torch.bool)
    masks[:, :4] = True
    values = measured_table(masks=masks).values
    assert 0.2 < values["random"]["pointing"].mean() < 0.8
    assert set(np.unique(values["perfect"]["pointing"])) <= {0.0, 1.0}


def test_too_few_images():
    table = measured_table(number=2)
    assert table.verdict("perfect") == "too few images to say"
    assert summarize(table) == "2 images are too few to compare methods; use at least 10."
    assert summarize(measured_table(number=1)).startswith("One image is too few")


def made(**means):
    """Twelve images; every method has its mean, and scatter of its own."""
    generator = np.random.default_rng(0)
    return FaithfulnessTable(
        {name: {"faithfulness": mean + 0.01 * generator.normal(size=12)} for name, mean in means.items()}
    )


def test_the_summary():
    summary = summarize(made(random=0.1, a=0.5, b=0.501, c=0.3, d=0.1))
    best, equal = ("a", "b") if "images a" in summary else ("b", "a")
    assert summary == (
        f"On these 12 images {best} and, not significantly worse, {equal} are the most faithful: 0.50, "
        "random maps 0.10. No better than random: d."
    )
    none_better = "On these 12 images no method is more faithful than random maps. Worse than random: a."
    assert summarize(made(random=0.1, a=0.0)) == none_better


@pytest.mark.slow
def test_on_a_real_model_explanations_of_its_answers_beat_random():
    need_shared()
    model = vt.load(DEIT_TINY, model="deit_tiny_16").eval()
    names, files = zip(*golden_images(), strict=True)
    images = torch.stack([vt.transforms(model)(file) for file in files])
    targets = torch.tensor([class_of(name) for name in names])
    methods = {name: METHODS[name] for name in ("gradient rollout", "class attention")}
    table = compare_methods(model, images, class_score(targets), methods=methods, steps=10)
    assert table.verdict("gradient rollout") == table.verdict("class attention") == "better than random"


BAD = [
    ({"steps": 0}, "steps must be at least 1, got 0"),
    ({"baseline": "blurr"}, "unknown baseline 'blurr'; did you mean 'blur'"),
    ({"heat": HEAT * float("nan")}, "NaN"),
    ({"score": class_score(torch.tensor([2]))}, "targets must lie in 0 … 1"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input(change, message):
    model, images = four_cells()
    given = {"score": ONE, "heat": HEAT} | change
    with pytest.raises(ValueError, match=message):
        deletion(model, images, given.pop("score"), given.pop("heat"), **given)
