"""Scores against values computed by hand, and every attribution method with every kind of score."""

import pytest
import torch

import vitreous as vt
from tests.explain.toy import dense, toy
from tests.parity import error, fill
from vitreous.explain.attribution import METHODS, integrated_gradients, occlusion
from vitreous.explain.faithfulness import deletion, insertion
from vitreous.explain.lens import logit_lens
from vitreous.explain.score import (
    check_score,
    class_score,
    outputs_of,
    probabilities,
    region_score,
    scores,
    take,
)
from vitreous.models.base import mean_logits

TARGETS = torch.tensor([1, 4])
SCORE = class_score(TARGETS)
GIVING_NUMBERS = [name for name in METHODS if name != "random"]


def vit(**overrides):
    return fill(vt.create_model("vit_tiny_16", **({"depth": 2, "image_size": 64, "num_classes": 7} | overrides)))


def photos():
    return torch.randn(2, 3, 48, 80)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"distilled": True}])
def test_a_class_score_is_the_logit_of_the_model_bit_for_bit(options):
    """Also of the mean of two heads, and as a probability."""
    model, images = vit(**options).eval(), photos()
    logits = model(images)
    assert torch.equal(mean_logits(outputs_of(model, images)), logits)
    assert torch.equal(scores(model, images, SCORE), logits[[0, 1], TARGETS])
    assert torch.equal(probabilities(model, images, SCORE), logits.softmax(-1)[[0, 1], TARGETS])


def test_a_region_score_by_hand():
    masks = torch.tensor([[[[1.0, 2.0]], [[3.0, 8.0]]], [[[0.0, 0.0]], [[5.0, 7.0]]]])
    both = region_score(torch.tensor([[[True, False]], [[True, True]]]), 1)
    assert both({"masks": masks}).tolist() == [3.0, 6.0]
    assert region_score(torch.tensor([[[True, True]]] * 2), 0)({"masks": masks}).tolist() == [1.5, 0.0]
    expected = [torch.tensor(2.0).sigmoid(), (torch.tensor(5.0).sigmoid() + torch.tensor(7.0).sigmoid()) / 2]
    assert torch.allclose(both.probability({"masks": masks}), torch.stack(expected))
    masks[0, 1, 0, 1] = torch.inf
    assert both({"masks": masks}).tolist() == [3.0, 6.0], "what lies outside the region does not count"


def test_rows_of_a_score_are_those_images():
    rows = torch.tensor([1, 0, 1])
    assert take(SCORE, rows).targets.tolist() == [4, 1, 4]
    masks = torch.rand(2, 3, 2, 2)
    region = region_score(torch.tensor([[[True, False]] * 2, [[False, True]] * 2]), 2)
    assert torch.equal(take(region, rows)({"masks": masks[rows]}), region({"masks": masks})[rows])
    every = mean_logits
    assert take(every, rows) is every


@pytest.mark.parametrize("method", GIVING_NUMBERS)
def test_a_function_of_the_outputs_explains_as_the_class_does(method):
    model, images = vit(), photos()
    by_class = METHODS[method](model, images, class_score(torch.tensor([3, 3])))
    assert torch.equal(METHODS[method](model, images, lambda outputs: outputs["class"][:, 3]), by_class)


def test_a_region_rests_on_its_own_pixels():
    """Each cell of the dense toy depends on its own pixels only, so heat outside the region is zero."""
    model, images = dense(toy([0.0] * 4, (4, 4))), torch.full((2, 1, 4, 4), 3.0)
    mask = torch.tensor([[[True, False], [False, False]], [[False, True], [False, True]]])
    shares = torch.stack([mask[0] * 3.0, mask[1] * 1.5])
    pixels = shares.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.allclose(occlusion(model, images, region_score(mask, 1), window=2), pixels)
    assert torch.allclose(integrated_gradients(model, images, region_score(mask, 1), batch_size=3), pixels / 4)
    assert not occlusion(model, images, region_score(mask, 0), window=2).any()


def test_curves_follow_the_probability_in_the_region():
    model, images = dense(toy([0.0] * 4, (4, 4))), torch.full((1, 1, 4, 4), 3.0)
    score = region_score(torch.tensor([[[True, False], [False, True]]]), 1)
    heat = torch.tensor([[[4.0, 1.0], [2.0, 3.0]]])
    shown, hidden = torch.tensor(3.0).sigmoid().item(), 0.5
    half = (shown + hidden) / 2
    falling = deletion(model, images, score, heat, steps=4, baseline="gray")
    assert falling[0].tolist() == pytest.approx([shown, half, hidden, hidden, hidden])
    rising = insertion(model, images, score, heat, steps=4, baseline="gray")
    assert rising[0].tolist() == pytest.approx([hidden, half, shown, shown, shown])
    plain = deletion(model, images, lambda outputs: outputs["masks"][:, 1, 0, 0], heat, steps=1, baseline="gray")
    assert plain.tolist() == [[3.0, 0.0]], "of a function the curve follows the score itself"


@pytest.mark.parametrize("method", GIVING_NUMBERS)
def test_every_method_explains_a_region(method):
    """Images keep their regions, and methods that use the score depend on the region."""
    model, images = dense(vit()), photos()
    mask = torch.zeros(2, 3, 5, dtype=torch.bool)
    mask[0, 0, 0] = mask[1, 2, 3:] = True
    both = METHODS[method](model, images, region_score(mask, 2))
    alone = METHODS[method](model, images[1:], region_score(mask[1:], 2))
    assert error(both[1:], alone) < 1e-5
    other = METHODS[method](model, images, region_score(mask.flip(0), 2))
    uses_score = method in ("gradient rollout", "occlusion", "integrated gradients")
    assert (error(other, both) > 1e-2) == uses_score


def test_the_lens_reads_any_score():
    model, images = vit(), photos()
    logits, scored = logit_lens(model, images), logit_lens(model, images, SCORE)
    assert list(scored) == list(logits) == ["blocks.0", "blocks.1"]
    assert all(torch.equal(scored[block], logits[block][[0, 1], TARGETS]) for block in logits)


REGION = torch.ones(2, 3, 5, dtype=torch.bool)
BAD = [
    (lambda m, x: class_score(torch.tensor([0.0, 1.0])), "got torch.float32 of shape"),
    (lambda m, x: class_score(torch.tensor([[0, 1]])), r"shape \(1, 2\)"),
    (lambda m, x: class_score(torch.tensor([0, -1])), r"class indices from 0, got \[0, -1\]"),
    (lambda m, x: check_score(class_score(torch.tensor([0, 7])), m, 2), r"targets must lie in 0 … 6, got \[0, 7\]"),
    (lambda m, x: check_score(SCORE, m, 3), "one class index per image: 3, got 2"),
    (lambda m, x: check_score(SCORE, vit(num_classes=0), 2), "the model has no classes"),
    (lambda m, x: check_score(TARGETS, m, 2), "score must be a function of the outputs"),
    (lambda m, x: check_score(region_score(REGION, 0), m, 1), "one mask per image: 1, got 2"),
    (lambda m, x: region_score(REGION.float(), 0), "mask must be bool"),
    (lambda m, x: region_score(REGION & torch.tensor([[[True]], [[False]]]), 0), "got an empty region"),
    (lambda m, x: region_score(REGION, -1), "got -1"),
    (lambda m, x: scores(m, x, region_score(REGION, 0)), "needs the output 'masks', the model returns class"),
    (lambda m, x: scores(dense(m), x, region_score(REGION, 7)), "class_index must lie in 0 … 6, got 7"),
    (lambda m, x: scores(dense(m), x, region_score(REGION[:, :2], 0)), "2×5 pixels, the model's masks have 3×5"),
    (lambda m, x: scores(m, x, mean_logits), r"one number per image, got shape \(2, 7\) for 2 images"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_scores(call, message):
    with pytest.raises(ValueError, match=message):
        call(vit(), photos())
