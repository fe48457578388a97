"""The logit lens reads what a shorter model would say, in every family, and leaves the model as it was."""

import pytest
import torch

from tests.family import SMALLEST, shallow, small
from tests.parity import Skip, error
from vitreous.explain.lens import logit_lens
from vitreous.models import MODELS


def vit(depth=3, **overrides):
    return small("vit_tiny_16", depth=depth, dim=48, **overrides)


def two_at_the_end(name):
    """Few blocks, of which the last stage has two."""
    options = shallow(name)
    if "depths" in options:
        options["depths"] = (*options["depths"][:-1], 2)
    if "stages" in options:
        options["stages"] = (*options["stages"][:-1], MODELS[name].stages[-1].override(depth=2))
    return options


def stopped_after(model, index, images):
    """Slowly: the whole model, with every later block left out."""
    later = model.blocks[index + 1 :]
    for block in later:
        block.forward = Skip().forward
    try:
        return model(images)
    finally:
        for block in later:
            del block.forward


def of_all_tokens(model, images):
    return torch.stack(list(model.heads(model.features(images)).values())).mean(0)


@torch.no_grad()
def test_it_says_what_a_shallower_model_says():
    model, images = vit(num_registers=2), torch.randn(2, 3, 48, 80)
    answers = logit_lens(model, images)
    assert list(answers) == ["blocks.0", "blocks.1", "blocks.2"]
    for index, answer in enumerate(answers.values()):
        twin = vit(depth=index + 1, num_registers=2)
        twin.load_state_dict({name: model.state_dict()[name] for name in twin.state_dict()})
        assert error(answer, twin(images)) < 1e-6
    assert torch.equal(answers["blocks.2"], of_all_tokens(model, images))


@torch.no_grad()
def test_wrong_lenses_are_seen():
    model, images = vit(), torch.randn(2, 3, 64, 64)
    answers = logit_lens(model, images)
    streams = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, args, output: streams.append((args[0], output)))
    model(images)
    for (given, gave), answer in zip(streams, answers.values(), strict=True):
        assert error(model.head(model.norm(gave)[:, 0]), answer) < 1e-6
        wrong = {
            "before the block": model.head(model.norm(given)[:, 0]),
            "without the final norm": model.head(gave[:, 0]),
            "the cells instead of the class token": model.head(model.norm(gave)[:, 1:].mean(1)),
        }
        for version, numbers in wrong.items():
            assert error(numbers, answer) > 0.1, version


@torch.no_grad()
@pytest.mark.parametrize("name", SMALLEST)
def test_the_last_stage_of_every_family(name):
    model, images = small(name, **two_at_the_end(name)), torch.randn(1, 3, 64, 64)
    last = len(model.blocks) - 1
    answers = logit_lens(model, images)
    assert list(answers) == [f"blocks.{last - 1}", f"blocks.{last}"]
    assert error(answers[f"blocks.{last - 1}"], stopped_after(model, last - 1, images)) < 1e-6
    assert torch.equal(answers[f"blocks.{last}"], of_all_tokens(model, images))
    assert error(*answers.values()) > 1e-2


@torch.no_grad()
def test_maps_that_become_tokens_are_still_one_stream():
    """EfficientFormer's last stage pools over maps first and attends over tokens then."""
    model, images = small("efficientformer_l1", depths=(1, 1, 1, 3)), torch.randn(1, 3, 64, 96)
    answers = logit_lens(model, images)
    assert list(answers) == ["blocks.3", "blocks.4", "blocks.5"]
    for index in (3, 4, 5):
        assert error(answers[f"blocks.{index}"], stopped_after(model, index, images)) < 1e-6


def test_an_equal_shape_is_not_the_same_stream():
    """On a single patch both stages have one token of one width, and still there is a step between them."""
    stage = MODELS["vit_down_tiny_16"].stages[0].override(dim=48, depth=1)
    model = small("vit_down_tiny_16", stages=(stage, stage))
    assert list(logit_lens(model, torch.randn(1, 3, 16, 16))) == ["blocks.1"]


@torch.no_grad()
def test_a_block_that_stands_in_several_places():
    model, images = vit(depth=4), torch.randn(1, 3, 64, 64)
    model.blocks[2] = model.blocks[1]
    model.blocks[3] = model.blocks[1]
    answers = logit_lens(model, images)
    assert list(answers) == [f"blocks.{index}" for index in range(4)]
    model.blocks = model.blocks[:3]
    assert error(answers["blocks.2"], model(images)) < 1e-6


def assert_untouched(model):
    for block in model.blocks:
        assert "forward" not in vars(block)
        assert not block._forward_hooks


def test_nothing_is_left_behind():
    model, images = vit(), torch.randn(1, 3, 64, 64)
    before = model(images)
    answers = logit_lens(model, images)
    assert_untouched(model)
    assert torch.equal(model(images), before)
    assert not any(answer.requires_grad for answer in answers.values())


@pytest.mark.parametrize("calls_before_failing", [0, 2])
def test_nothing_is_left_behind_by_a_failure(calls_before_failing):
    model = vit()
    answers = iter([torch.zeros(1, 7)] * calls_before_failing)
    model.head.forward = lambda x: next(answers)
    with pytest.raises(StopIteration):
        logit_lens(model, torch.randn(1, 3, 64, 64))
    assert_untouched(model)


def test_a_forward_of_ones_own_survives():
    model = vit()
    own = Skip().forward
    model.blocks[1].forward = own
    answers = logit_lens(model, torch.randn(1, 3, 64, 64))
    assert vars(model.blocks[1])["forward"] is own
    assert torch.equal(answers["blocks.0"], answers["blocks.1"])


def test_without_a_classifier_it_gives_the_features():
    model = vit()
    model.reset_head(0)
    assert {tuple(answer.shape) for answer in logit_lens(model, torch.randn(2, 3, 64, 64)).values()} == {(2, 48)}


def test_bad_input():
    with pytest.raises(ValueError, match="needs a Vitreous model, got Linear"):
        logit_lens(torch.nn.Linear(1, 1), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="smaller than one patch"):
        logit_lens(vit(), torch.randn(1, 3, 8, 8))
